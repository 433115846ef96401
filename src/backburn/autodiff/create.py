"""Gradient rules: create."""
