"""labelkit.cli."""
