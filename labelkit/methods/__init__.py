"""labelkit.methods."""
