"""labelkit.losses."""
