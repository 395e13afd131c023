"""labelkit.methods.sela."""
