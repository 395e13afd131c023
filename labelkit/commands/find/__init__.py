"""``find``: images of a store that a person should look at: near-duplicates, outliers, new ones, doubtful labels."""
