"""``show``: pictures of training and of results, one module per kind of picture."""
