"""NumPy: normalize."""
