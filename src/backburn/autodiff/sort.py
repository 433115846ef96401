"""Gradient rules: order.

None is needed: what sorts values reads them at indices that have no gradient.
"""
