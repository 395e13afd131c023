"""Named data sets: which are there, and what they hold."""
