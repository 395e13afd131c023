"""``labelkit reproduce``: run the commands of published tables, and compare measured with published values."""
