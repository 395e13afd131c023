"""Parts that several commands share: inputs, outputs, labels, networks, embedded queries and results."""
