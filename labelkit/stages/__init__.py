"""labelkit.stages."""
