"""``labelkit start``: run all steps from a folder of photos to a table of labels, each of which is a command."""
