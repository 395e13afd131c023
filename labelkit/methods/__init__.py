"""The training methods, in one folder per family, and their table."""

OWN_METHODS_VARIABLE = "LABELKIT_METHODS"
"""Environment variable that lists files or modules with methods of your own, separated as in PATH."""
