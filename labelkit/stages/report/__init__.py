"""labelkit.stages.report."""
