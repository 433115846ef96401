"""Samples: kinds."""
