"""labelkit.config.methods."""
