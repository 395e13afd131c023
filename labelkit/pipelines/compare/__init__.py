"""``compare``: train and evaluate several methods with several seeds, and collect their scores in one table."""
