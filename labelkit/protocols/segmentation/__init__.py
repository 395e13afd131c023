"""Segmentation heads and the networks that they judge."""
