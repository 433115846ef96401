"""NumPy: choice."""
