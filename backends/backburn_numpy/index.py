"""NumPy: index."""
