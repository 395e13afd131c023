"""``report``: one HTML page about a store, with its scores, groups and images."""
