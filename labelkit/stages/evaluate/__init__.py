"""labelkit.stages.evaluate."""
