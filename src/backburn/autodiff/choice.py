"""Gradient rules: choice."""
