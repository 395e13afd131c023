"""``find``: find images of a store to review: near-duplicates, outliers, new classes, label errors."""
