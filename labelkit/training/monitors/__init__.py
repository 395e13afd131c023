"""Monitors that evaluate a network during training, one file per kind of evaluation."""
