"""Self-supervised learning of image and patch features: CoTAP, and its baselines DINO and iBOT."""
