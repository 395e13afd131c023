"""The options of each training method, one class per file."""
