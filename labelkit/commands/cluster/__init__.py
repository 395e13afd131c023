"""``cluster``: cluster the embeddings of a store, with ids that are stable between runs."""
