"""``labelkit start``: all steps from a folder of photos to a table of labels, each one a command of its own."""
