"""Commands that call commands."""
