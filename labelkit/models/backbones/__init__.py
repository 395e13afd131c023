"""Backbones by name, and the implementations of labelkit's own backbones."""
