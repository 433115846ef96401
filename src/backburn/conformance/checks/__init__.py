"""Checks: each property that a backend must have, as a function of a backend and a sample."""
