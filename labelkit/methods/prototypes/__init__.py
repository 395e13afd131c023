"""Classification with fixed class prototypes (DL2PA), and its learned baseline (softmax)."""
