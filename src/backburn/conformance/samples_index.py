"""Samples: index."""
