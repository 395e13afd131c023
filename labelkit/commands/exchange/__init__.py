"""``import`` and ``export``: carry embeddings into other formats and back."""
