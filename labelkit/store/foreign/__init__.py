"""labelkit.store.foreign."""
