"""Our own kernels in CUDA C++, and their launchers.

``source/*.cu`` are the kernels, ``geometry`` has the launch dimensions, and the modules named like the contract's
families have the launchers. A launcher takes a :class:`~backburn_cupy.kernels.runner.Runner`, then its operation's
arguments, takes and returns arrays, and never synchronizes.
"""
