"""``compare``: train and score several methods on several seeds, and put the scores into one table."""
