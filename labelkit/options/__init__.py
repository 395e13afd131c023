"""Options: one class per command, checked before any work; imports no torch."""
