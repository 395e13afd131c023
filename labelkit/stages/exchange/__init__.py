"""labelkit.stages.exchange."""
