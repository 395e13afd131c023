"""Self-supervised learning from two views of each image, by one of several losses."""
