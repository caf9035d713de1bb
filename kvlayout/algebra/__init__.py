"""Exact integer algebra of layouts: boxes and their coverage, nests and their folding.

Pure functions over integers and tuples; the standard library only. Every cost here is a number of boxes, digits or
loops, never a number of bytes.
"""
