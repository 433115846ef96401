"""Algorithms that default bodies and gradient rules are written with."""
