"""labelkit.stages.group."""
