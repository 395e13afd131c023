"""labelkit.metrics."""
