"""``match``: find pairs of images of a store that show the same object, by matching keypoints."""
