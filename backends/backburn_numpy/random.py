"""NumPy: random."""
