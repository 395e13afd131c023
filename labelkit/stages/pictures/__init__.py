"""labelkit.stages.pictures."""
