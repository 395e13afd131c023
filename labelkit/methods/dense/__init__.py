"""labelkit.methods.dense."""
