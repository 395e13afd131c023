"""Named benchmark sets: readers of lists, masks and arrays, and the class lists of benchmarks."""
