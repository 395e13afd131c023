"""The command line: commands parse their options, run the underlying function, and print its result."""
