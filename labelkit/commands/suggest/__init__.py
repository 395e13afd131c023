"""``suggest``: which images to label next."""
