"""Named benchmark sets, one file per set or family of sets, and what their files have in common."""
