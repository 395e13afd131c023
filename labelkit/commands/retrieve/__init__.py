"""``retrieve``: find the images or patches of a store that look most like a query."""
