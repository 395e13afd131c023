"""Segmentation heads and networks for evaluating backbones."""
