"""Samples: random."""
