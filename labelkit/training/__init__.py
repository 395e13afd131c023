"""Shared training code: the base class of methods, the trainer, checkpoints, guards and the run folder."""
