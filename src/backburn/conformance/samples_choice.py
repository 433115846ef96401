"""Samples: choice."""
