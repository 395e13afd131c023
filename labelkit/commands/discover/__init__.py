"""``discover``: name old and new classes among unlabeled images, estimate how many there are, and say how sure."""
