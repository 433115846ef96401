"""Samples: loss."""
