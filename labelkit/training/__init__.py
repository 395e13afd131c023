"""Shared parts of training: the base class of methods, the trainer, checkpoints, guards and the run folder."""
