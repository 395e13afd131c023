"""What several commands read before they start: networks, rows, labels, splits and run logs."""
