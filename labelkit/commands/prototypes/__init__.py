"""``prototypes``: make points on the sphere that are far from each other, and report their distances."""
