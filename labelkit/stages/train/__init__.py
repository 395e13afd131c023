"""labelkit.stages.train."""
