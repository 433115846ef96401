"""NumPy: linalg."""
