"""labelkit.algorithms.sinkhorn."""
