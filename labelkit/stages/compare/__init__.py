"""labelkit.stages.compare."""
