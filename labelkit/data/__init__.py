"""labelkit.data."""
