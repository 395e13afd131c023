"""Features of patches and images without labels: CoTAP, and its rivals DINO and iBOT."""
