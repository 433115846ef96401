"""Kernels of our own in CUDA C++, and what launches them.

``source/*.cu`` are the kernels, ``geometry`` the numbers of threads, the modules named as the families of the contract
the launchers. A launcher has the signature of its operation after a :class:`~backburn_cupy.kernels.runner.Runner`,
takes and returns arrays, and never waits for the device.
"""
