"""Find images of a store that a person should look at: copies, and odd ones."""
