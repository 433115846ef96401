"""NumPy: loss."""
