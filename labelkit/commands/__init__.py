"""The work of the commands: each takes a config, reads files, does its work and returns a result."""
