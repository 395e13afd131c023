"""Code shared by several commands: inputs, outputs, labels, networks, queries and results."""
