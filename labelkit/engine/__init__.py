"""labelkit.engine."""
