"""Gradient rules: loss."""
