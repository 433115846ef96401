"""Samples: sort."""
