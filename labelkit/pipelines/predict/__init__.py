"""``predict``: predict labels of photos that are not in a store from its answers."""
