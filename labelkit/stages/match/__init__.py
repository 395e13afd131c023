"""labelkit.stages.match."""
