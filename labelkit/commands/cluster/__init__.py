"""``cluster``: group the rows of a store, and keep group ids stable."""
