"""Benchmarks against other libraries: ``python -m benchmarks`` or ``nox -s bench``."""
