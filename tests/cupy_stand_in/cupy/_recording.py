"""What is being recorded."""

from __future__ import annotations

from typing import Any

import numpy as np


class Namespace:
    """A module of functions."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


class Tape:
    """What is being recorded: calls that write again what they have written."""

    calls: list[Any] | None = None

    @classmethod
    def add(cls, compute: Any) -> None:
        """Remember a call, if something is being recorded."""
        if cls.calls is not None:
            cls.calls.append(compute)

    @classmethod
    def made(cls, compute: Any) -> Any:
        """What ``compute`` makes; a replay writes it anew into the same memory. Views need not be written."""
        result = compute()
        if cls.calls is not None:
            parts = result if isinstance(result, tuple) else (result,)

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
