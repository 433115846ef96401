"""Gradient rules: normalize."""
