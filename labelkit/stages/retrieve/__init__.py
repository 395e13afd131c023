"""labelkit.stages.retrieve."""
