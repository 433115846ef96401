"""The null backend: shapes and dtypes without values, to inspect models, graphs and memory."""

from backburn_null.backend import Null, NullBackend

__all__ = ["Null", "NullBackend"]
