"""Gradient rules: activate."""
