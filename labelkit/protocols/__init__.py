"""Evaluation protocols of papers: detection, segmentation, tracking, probes, multi-label classification."""
