"""A stand-in for CuPy, and checks of its fidelity."""
