"""What can be set: one class of options per command, checked before any work; imports no torch."""
