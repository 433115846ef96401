"""Convolutions by compiled kernels: their sizes, the choice of a kernel, and blocks for the threads."""
