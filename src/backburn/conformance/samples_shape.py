"""Samples: shape."""
