"""Metric learning without labels or with those of other classes: TAC-CCL and SAN."""
