"""Gradient rules: index."""
