"""A stand-in for CuPy, and what shows that it is one."""
