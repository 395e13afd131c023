"""Detection by a Mask R-CNN and its average precision."""
