"""labelkit.data.named."""
