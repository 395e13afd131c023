"""What the commands do: each takes a config, reads files, does the work and returns its result."""
