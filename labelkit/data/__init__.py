"""Images, labels and views: listings, splits, decoding, loaders, samplers, keyed randomness."""
