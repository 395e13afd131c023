"""The report page and labeling in the browser."""
