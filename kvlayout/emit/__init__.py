"""Byte copies from a proved plan: the reference interpreter, generated kernels and bound moves."""
