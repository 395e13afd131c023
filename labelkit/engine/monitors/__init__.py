"""labelkit.engine.monitors."""
