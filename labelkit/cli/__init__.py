"""The command line: each command parses, calls a stage, prints its result."""
