"""Object detection with R-CNN detectors."""
