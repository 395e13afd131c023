"""``predict``: answer for photos that are not in a store by the answers that are."""
