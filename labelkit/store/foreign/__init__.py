"""Files that others wrote, read without trusting them; HDF5 is met by a process of its own, see `check`."""
