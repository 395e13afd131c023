"""``match``: find pairs of images of a store that show the same thing, by keypoints that they share."""
