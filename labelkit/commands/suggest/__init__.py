"""``suggest``: choose the images to label next."""
