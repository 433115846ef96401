"""Gradient rules: sort."""
