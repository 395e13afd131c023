"""labelkit.stages.label."""
