"""The recording of calls."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np


class Namespace:
    """A module of functions."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


class Tape:
    """The calls being recorded; repeating one writes its results again.

    Because a real recording computes nothing, its end restores overwritten arrays and fills new memory with garbage.
    """

    calls: list[Any] | None = None
    #: The pool of the recording, and the addresses of arrays allocated from it.
    pool: Any = None
    inside: ClassVar[set[int]] = set()
    _made: ClassVar[list[Any]] = []
    _saved: ClassVar[list[tuple[Any, Any]]] = []

    @classmethod
    def begin(cls, pool: Any) -> None:
        """Begin to record, with memory of a pool."""
        assert cls.calls is None
        cls.calls, cls.pool = [], pool

    @classmethod
    def end(cls) -> tuple[list[Any], list[Any]]:
        """End the recording; returns the calls, and the memory allocated meanwhile, which they may use by address."""
        calls, cls.calls = cls.calls, None
        assert calls is not None
        for array, before in reversed(cls._saved):
            np.copyto(array, before)
        cls.spoil(cls._made)
        made = [*cls._made]
        cls._saved.clear()
        cls._made.clear()
        cls.inside.clear()
        return calls, made

    @staticmethod
    def spoil(arrays: list[Any]) -> None:
        """Fill memory of a recording with garbage."""
        for array in arrays:
            array.fill(True if array.dtype.kind == "b" else 111)

    @classmethod
    def add(cls, compute: Any) -> None:
        """Append a call to the recording, if any."""
        if cls.calls is not None:
            cls.calls.append(compute)

    @classmethod
    def allocated(cls, array: Any) -> Any:
        """Register new memory with the recording, if any."""
        if cls.calls is not None:
            cls._made.append(array)
            cls.inside.add(root_of(array).ctypes.data)
        return array

    @classmethod
    def writing(cls, array: Any) -> None:
        """Save an array that is about to be overwritten, unless it was allocated during the recording."""
        if cls.calls is not None and array.flags.writeable:
            root = root_of(array)
            if all(root is not root_of(made) for made in cls._made):
                cls._saved.append((array, array.copy()))

    @classmethod
    def made(cls, compute: Any) -> Any:
        """The result of ``compute``; a replay writes it to the same memory again. Views need not be written."""
        result = compute()
        if cls.calls is None:
            return result
        parts = result if isinstance(result, tuple) else (result,)
        others = compute()
        for part, other in zip(parts, others if isinstance(others, tuple) else (others,), strict=True):
            if part.flags.writeable and not np.may_share_memory(part, other):
                cls.allocated(part)

        def again() -> None:
            values = compute()
            for held, value in zip(parts, values if isinstance(values, tuple) else (values,), strict=True):
                if held.flags.writeable and not np.may_share_memory(held, value):
                    np.copyto(held, value)

        cls.calls.append(again)
        return result

    @classmethod
    def forbid(cls, what: str) -> None:
        """Raise during a recording, for calls that wait for the device."""
        if cls.calls is not None:
            raise RuntimeError(f"the current stream is capturing, so {what} are disallowed")

    @classmethod
    def refuse(cls, library: str) -> None:
        """Raise during a recording, for library calls that CuPy does not allow then."""
        if cls.calls is not None:
            raise NotImplementedError(f"calling {library} API during stream capture is currently unsupported")


def root_of(array: Any) -> Any:
    """The array whose memory an array is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
