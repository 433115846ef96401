"""Samples: normalize."""
