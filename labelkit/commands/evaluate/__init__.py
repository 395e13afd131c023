"""``evaluate``: score clusterings, predictions, classifiers, retrieval and patch features against true labels."""
