"""Samples: activate."""
