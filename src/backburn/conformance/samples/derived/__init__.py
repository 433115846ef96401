"""Samples derived from others: edge values, and other dtypes."""
