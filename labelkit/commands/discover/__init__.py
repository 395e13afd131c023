"""``discover``: find known and new classes among unlabeled images, estimate their number, and report confidences."""
