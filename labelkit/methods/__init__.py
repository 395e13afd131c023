"""The training methods, a folder per family, and the one table of them."""
