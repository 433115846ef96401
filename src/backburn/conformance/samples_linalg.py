"""Samples: linalg."""
