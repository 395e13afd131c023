"""labelkit.methods.prototypes."""
