"""NumPy: activate."""
