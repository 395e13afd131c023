"""``labelkit reproduce``: run the commands for published tables, and compare measured with published values."""
