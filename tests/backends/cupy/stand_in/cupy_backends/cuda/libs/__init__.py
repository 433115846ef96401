"""The bindings below CuPy."""
