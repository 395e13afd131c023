"""labelkit.stages.read."""
