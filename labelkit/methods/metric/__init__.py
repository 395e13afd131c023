"""labelkit.methods.metric."""
