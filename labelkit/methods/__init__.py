"""Training methods, in one folder per family, and their registry."""

OWN_METHODS_VARIABLE = "LABELKIT_METHODS"
"""Environment variable that lists files or modules with user-defined methods, separated as in PATH."""
