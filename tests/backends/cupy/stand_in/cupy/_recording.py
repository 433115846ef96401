"""The recording of calls."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np


class Namespace:
    """A module of functions."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


class Tape:
    """The calls being recorded, which write again what they have written.

    Since a real recording computes nothing, everything is as it was when one ends, and what was made holds rubbish.
    """

    calls: list[Any] | None = None
    #: Where the memory comes from meanwhile, and the addresses of what was made of it.
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
        """End it; returns the calls, and the memory that was made meanwhile, which they may use by its address."""
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
        """Fill memory of a recording with rubbish."""
        for array in arrays:
            array.fill(True if array.dtype.kind == "b" else 111)

    @classmethod
    def add(cls, compute: Any) -> None:
        """Remember a call, if something is being recorded."""
        if cls.calls is not None:
            cls.calls.append(compute)

    @classmethod
    def allocated(cls, array: Any) -> Any:
        """Remember new memory."""
        if cls.calls is not None:
            cls._made.append(array)
            cls.inside.add(root_of(array).ctypes.data)
        return array

    @classmethod
    def writing(cls, array: Any) -> None:
        """Remember what is about to be written over, unless it was made meanwhile."""
        if cls.calls is not None and array.flags.writeable:
            root = root_of(array)
            if all(root is not root_of(made) for made in cls._made):
                cls._saved.append((array, array.copy()))

    @classmethod
    def made(cls, compute: Any) -> Any:
        """The result of ``compute``; a replay writes it anew into the same memory. Views need not be written."""
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
        """Refuse what waits for the device."""
        if cls.calls is not None:
            raise RuntimeError(f"the current stream is capturing, so {what} are disallowed")

    @classmethod
    def refuse(cls, library: str) -> None:
        """Refuse what CuPy lets no recording call."""
        if cls.calls is not None:
            raise NotImplementedError(f"calling {library} API during stream capture is currently unsupported")


def root_of(array: Any) -> Any:
    """The array whose memory an array is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
