"""``show``: pictures of what was learned or found, one file per kind of picture."""
