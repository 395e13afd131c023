"""``report``: one HTML page about a run or a store, with its scores, curves, groups and images."""
