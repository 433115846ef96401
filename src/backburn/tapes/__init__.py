"""Explicit tapes: recorded slots, closures and a typed graph, on the graph and the rules of ``Autodiff``.

Users import them from :mod:`backburn.tape` (tensors) and :mod:`backburn.autodiff.tape` (primitives).
"""
