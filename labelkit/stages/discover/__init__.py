"""labelkit.stages.discover."""
