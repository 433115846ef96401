"""Fusion: which calls of a program become one pass over memory, and what that pass computes, for any backend."""
