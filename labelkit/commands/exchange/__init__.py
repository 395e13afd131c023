"""``import`` and ``export``: exchange embeddings with other programs."""
