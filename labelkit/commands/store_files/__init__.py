"""What lies on the disk: status, verify and pack."""
