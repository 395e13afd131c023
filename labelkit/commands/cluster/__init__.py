"""``cluster`` and ``diff``: group the rows of a store, keep group ids stable, and compare two groupings."""
