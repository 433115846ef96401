"""The real CuPy over the memory of the host, where there is no device."""
