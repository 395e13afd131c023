"""Loading of weights from files, the hub and installed packages."""
