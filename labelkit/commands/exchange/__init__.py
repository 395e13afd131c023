"""``export-rows``, ``import-rows`` and ``pack``: carry embeddings into other formats and back."""
