"""labelkit: learn image representations and labels with few labels or none."""

__version__ = "0.1.0"
