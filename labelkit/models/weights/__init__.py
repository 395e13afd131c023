"""Weights: files, published ones, packages."""
