"""Gradient rules: scan."""
