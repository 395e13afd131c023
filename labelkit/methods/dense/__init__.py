"""Dense features from images without labels: CoTAP."""
