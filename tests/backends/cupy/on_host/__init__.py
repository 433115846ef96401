"""The real CuPy on host memory, without a device."""
