"""``embed``: turn images into rows of an embedding store, with patches if requested."""
