"""Implementations of the commands: each takes a config, reads its inputs, and returns a result."""
