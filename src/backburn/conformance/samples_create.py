"""Samples: create."""
