"""Sources of batches: trees of arrays, data frames, memory maps, and records that are read on access."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.base.trees import flatten, leaves_with_paths, unflatten
from backburn.data.order import Indices

#: The elements of a map that are read before its pages are released: an element may load a huge page of 2 MiB.
TOGETHER = 8
#: The least size, in bytes, of a map whose pages are released.
LARGE = TOGETHER << 21


class Source:
    """Elements by number, in the structure in which they were given: ``source[indices]`` is a batch of them.

    Raises the errors of :func:`backburn.data.batches`, in the name of ``name``.
    """

    def __init__(self, name: str, given: tuple[Any, ...]) -> None:
        if not given:
            raise ArgumentError(f"{name}: takes at least one array")
        for x in given:
            if type(x) in (list, tuple):
                hint = "np.asarray(...) makes it an array"
                raise DTypeError(f"{name}: takes arrays one after another, not a {type(x).__name__}: {hint}")
        columns = tuple([_columns(name, x) for x in given])
        tree = columns[0] if len(columns) == 1 and not _is_array(columns[0]) else columns
        self.names = [path for path, _ in leaves_with_paths(tree, _is_array)]
        leaves, self._structure = flatten(tree, is_leaf=_is_array)
        self._leaves = [_leaf(name, *each) for each in zip(self.names, leaves, strict=True)]
        self.length = self._common_length(name)
        self._readers = [leaf if (found := _map_of(leaf)) is None else Mapped(leaf, found) for leaf in self._leaves]
        flat = all(child.cls is None for child in self._structure.children)
        self._kind = type(tree) if flat else None
        self._keys = tuple(tree) if self._kind is dict else ()

    def __getitem__(self, indices: Indices) -> Any:
        found = [leaf[indices] for leaf in self._readers]
        if self._kind is tuple:  # the common kinds, without a walk over the tree
            return tuple(found)
        if self._kind is dict:
            return dict(zip(self._keys, found, strict=True))
        return unflatten(self._structure, found)

    def parts(self, first: Any, second: Any) -> tuple[Any, Any]:
        """The elements of two slices, or of two arrays of indices, in the structure of the source."""

        def part(which: Any) -> Any:
            chosen = [
                leaf[which] if _is_array(leaf) or not hasattr(leaf, "select") else leaf.select(_numbers(which, leaf))
                for leaf in self._leaves
            ]
            return unflatten(self._structure, chosen)

        return part(first), part(second)

    def describe(self) -> dict[str, Any]:
        """The dtype and shape of each array by its name, for comparing the data of two runs."""
        return {name: _described(leaf) for name, leaf in zip(self.names, self._leaves, strict=True)}

    def _common_length(self, name: str) -> int:
        lengths = {each or "data": len(leaf) for each, leaf in zip(self.names, self._leaves, strict=True)}
        if not lengths:
            raise ArgumentError(f"{name}: takes at least one array, and the tree has none")
        if len(set(lengths.values())) > 1:
            plain = all(key.isdigit() for key in lengths)
            words = ", ".join(str(n) if plain else f"{key}: {n}" for key, n in lengths.items())
            raise ShapeError(f"{name}: the arrays have equal lengths, not {words}")
        return next(iter(lengths.values()))


class Mapped:
    """An array over a map that keeps little resident: the system caches released pages if it can."""

    def __init__(self, array: NDArray[Any], pages: mmap.mmap) -> None:
        self._array = array
        self._pages = pages

    def __getitem__(self, indices: Indices) -> NDArray[Any]:
        found = np.empty((len(indices), *self._array.shape[1:]), self._array.dtype)
        for start in range(0, len(indices), TOGETHER):
            part = slice(start, start + TOGETHER)
            found[part] = self._array[indices[part]]
            self._pages.madvise(mmap.MADV_DONTNEED)
        return found


def _is_array(x: Any) -> bool:
    """Whether ``x`` is an array or a tensor of any library."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _columns(name: str, x: Any) -> Any:
    """The columns of a data frame (of pandas, polars, pyarrow) as a dict of arrays; a column as an array."""
    if isinstance(x, Mapping):
        found = {}
        for key, each in x.items():
            if type(each) is list:
                raise DTypeError(f"{name}: {key!r} is a list: np.asarray(...) makes it an array")
            found[key] = _columns(name, each)
        return found
    if hasattr(x, "to_numpy") and not hasattr(x, "columns"):  # a series
        return _values(name, "the series", x)
    if not ((hasattr(x, "__arrow_c_stream__") or hasattr(x, "__dataframe__")) and hasattr(x, "columns")):
        return x
    keys = list(getattr(x, "column_names", None) or x.columns)
    if len(set(keys)) < len(keys):
        raise ArgumentError(f"{name}: the columns of the frame need different names: {', '.join(map(str, keys))}")
    return {key: _values(name, repr(key), x[key]) for key in keys}


def _values(name: str, what: str, series: Any) -> Any:
    """A column of a frame as an array. Raises :class:`DTypeError` for integers that gaps would round."""
    found = series.to_numpy()
    kind = str(getattr(series, "dtype", getattr(series, "type", ""))).lower()
    if found.dtype.kind == "f" and kind.startswith(("int", "uint")) and np.nanmax(np.abs(found), initial=0) >= 2.0**53:
        raise DTypeError(
            f"{name}: {what} has integers of 2**53 or more and gaps, for which a float's NaN stands: fill the gaps, or "
            "drop their rows"
        )
    return found


def _leaf(name: str, path: str, x: Any) -> Any:
    """``x`` if it has elements by number."""
    where = f" as {path!r}" if path and not path.isdigit() else ""
    if _is_array(x) and not np.ndim(x):
        raise ShapeError(f"{name}: takes arrays with a first axis, one after another, not {x!r:.60}{where}")
    if not _is_array(x) and (isinstance(x, (str, bytes)) or not (hasattr(x, "__len__") and hasattr(x, "__getitem__"))):
        what = repr(x) if isinstance(x, (int, float, str, bytes)) else f"a {type(x).__name__}"
        hint = "; .collect() reads it" if hasattr(type(x), "collect") else ""
        raise ShapeError(f"{name}: takes arrays with a first axis, one after another, not {what:.60}{where}{hint}")
    return x


def _map_of(x: Any) -> mmap.mmap | None:
    """The large map under an array that is a view of one, if its pages can be released without loss."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return None
    mode = None
    while x is not None and not isinstance(x, mmap.mmap):
        mode = x.mode if isinstance(x, np.memmap) else mode
        x = getattr(x, "base", None)
    # A private map, "c", holds changes that are nowhere else.
    return x if x is not None and mode in ("r", "r+", "w+") and len(x) > LARGE else None


def _numbers(which: Any, leaf: Any) -> Any:
    return range(*which.indices(len(leaf))) if isinstance(which, slice) else which


def _described(leaf: Any) -> Any:
    if _is_array(leaf):
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    describe: Callable[[], Any] | None = getattr(leaf, "describe", None)
    return describe() if describe is not None else f"{type(leaf).__name__}[{len(leaf)}]"
