"""labelkit.store."""
