"""Metric learning without labels, or with labels of other classes: TAC-CCL and SAN."""
