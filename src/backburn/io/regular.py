"""Reading ordinary files only, for the readers of this package: see :mod:`backburn.base.regular`."""

from backburn.base.regular import open_regular, read_end, read_regular

__all__ = ["open_regular", "read_end", "read_regular"]
