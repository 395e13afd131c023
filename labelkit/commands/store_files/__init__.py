"""``status``, ``verify`` and ``pack``: report progress, check integrity, and pack a store into one file."""
