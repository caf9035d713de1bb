"""Engines as they are: what kvlayout reads off the objects of an inference engine that runs in this process."""
