"""Object detection with R-CNN detectors and its average precision."""
