"""Benchmarks of labelkit against other libraries; ``make bench``."""
