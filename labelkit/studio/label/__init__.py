"""``label``: read labels from the browser or from files, and write them for other programs."""
