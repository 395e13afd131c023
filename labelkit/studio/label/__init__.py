"""``suggest`` and ``label``: say which images to label next, and take the labels in."""
