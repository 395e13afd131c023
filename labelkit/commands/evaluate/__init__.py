"""``evaluate``: score groups, answers, classifiers, retrieval and dense features against true labels."""
