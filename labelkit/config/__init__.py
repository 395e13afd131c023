"""labelkit.config."""
