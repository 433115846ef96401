"""What the operations run on: memory, threads, matrix products and the libraries for them, NumPy's warnings."""
