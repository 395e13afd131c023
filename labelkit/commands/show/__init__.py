"""``show``: plots of training runs, and contact sheets of results."""
