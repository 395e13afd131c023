"""Prototypes on the sphere, made and looked at."""
