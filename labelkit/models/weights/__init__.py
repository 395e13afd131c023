"""Weights from files, from the hub and from installed packages."""
