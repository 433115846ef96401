"""The null backend: shapes and dtypes without values, to look at models, graphs and memory uncomputed."""

from backburn_null.backend import Null, NullBackend

__all__ = ["Null", "NullBackend"]
