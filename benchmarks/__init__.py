"""Benchmarks against the peers, in turns: ``python -m benchmarks`` or ``nox -s bench``."""
