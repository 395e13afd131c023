"""``embed``: embed images into a store, with patches if requested."""
