"""labelkit.stages.show."""
