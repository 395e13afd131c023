"""Self-labeling (SeLa): balanced cluster assignments serve as labels for the next epochs."""
