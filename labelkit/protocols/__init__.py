"""Heads and networks of published evaluation protocols: detection and segmentation."""
