"""labelkit.methods.few_labels."""
