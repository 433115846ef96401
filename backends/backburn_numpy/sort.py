"""NumPy: sort."""
