"""labelkit.models."""
