"""The command line: each command parses, calls the work, prints its result."""
