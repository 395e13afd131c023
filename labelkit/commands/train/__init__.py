"""``train``: prepare data, labels and weights for a method, and train it."""
