"""Backbones by name, and the networks behind these names."""
