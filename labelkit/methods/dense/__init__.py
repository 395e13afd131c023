"""Features of patches and images without labels: CoTAP, and its baselines DINO and iBOT."""
