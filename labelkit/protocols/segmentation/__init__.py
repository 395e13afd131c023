"""Segmentation heads and networks, for the evaluation of backbones."""
