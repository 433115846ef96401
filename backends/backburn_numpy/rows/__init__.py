"""Reductions and norms of rows, columns and planes by compiled kernels."""
