"""NumPy: scan."""
