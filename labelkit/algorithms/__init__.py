"""labelkit.algorithms."""
