"""Samples: scan."""
