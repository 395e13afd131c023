"""``status``, ``verify`` and ``pack``: what lies on the disk, whether it is whole, and one file of many."""
