"""``datasets``: list the named data sets on this machine, and what is missing."""
