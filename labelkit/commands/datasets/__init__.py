"""``datasets``: list the registered datasets on this machine, and what is missing."""
