"""``prototypes``: make points on the sphere that are far from each other, and look at them."""
