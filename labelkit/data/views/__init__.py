"""labelkit.data.views."""
