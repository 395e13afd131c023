"""The training methods, a folder per family, and the one table of them."""

OWN_METHODS_VARIABLE = "LABELKIT_METHODS"
"""The variable that names files or modules with methods of your own, separated as in PATH."""
