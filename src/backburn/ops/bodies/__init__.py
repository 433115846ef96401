"""Algorithms that default bodies and gradient rules use."""
