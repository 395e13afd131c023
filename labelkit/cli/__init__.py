"""The command line: each command parses its options, calls the code that does the work, and prints the result."""
