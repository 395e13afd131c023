"""What judges a network during training, one file per kind of judgment."""
