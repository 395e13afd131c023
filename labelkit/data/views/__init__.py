"""Views of images: transforms, colors, the recipes of the methods, and pairs of views."""
