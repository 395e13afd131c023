"""``retrieve``: find the images or patches of a store that are most similar to a query."""
