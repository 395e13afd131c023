"""``embed``: embed images and write a store, with patch features if requested."""
