"""How papers judge: detection, segmentation, tracking, probes, multi-label classification."""
