"""``predict``: predict labels of photos outside a store from the predictions stored in it."""
