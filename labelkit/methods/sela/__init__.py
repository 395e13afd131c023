"""Self-labeling: clusters by balanced assignment are the labels of the next epochs (SeLa)."""
