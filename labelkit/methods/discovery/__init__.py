"""labelkit.methods.discovery."""
