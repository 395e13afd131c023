"""Classification with prototypes that are fixed beforehand (DL2PA), and its learned baseline (softmax)."""
