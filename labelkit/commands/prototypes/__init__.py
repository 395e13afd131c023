"""``prototypes``: compute well-separated points on the sphere, and report their distances."""
