"""labelkit.stages.embed."""
