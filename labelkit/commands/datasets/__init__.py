"""``datasets``: which named data sets are there, and what is missing."""
