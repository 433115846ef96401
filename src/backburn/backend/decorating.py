"""What decorators of backends have in common: everything but their primitives is the inner backend's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backburn.backend.contract import Capabilities
from backburn.base.dtypes import FloatDType, IntDType


class Decorating:
    """The members of a backend that a decorator hands on to the one that it wraps, ``_inner``.

    A base beside :class:`Backend`, before it. The operations are made from the operation table.
    """

    _inner: Any

    @property
    def inner_backend(self) -> Any:
        """The very backend that was wrapped."""
        return self._inner

    @property
    def device(self) -> str:
        """The inner backend's."""
        return self._inner.device  # type: ignore[no-any-return]

    @property
    def float_dtype(self) -> FloatDType:
        """The inner backend's."""
        return self._inner.float_dtype  # type: ignore[no-any-return]

    @property
    def int_dtype(self) -> IntDType:
        """The inner backend's."""
        return self._inner.int_dtype  # type: ignore[no-any-return]

    @property
    def capabilities(self) -> Capabilities:
        """The inner backend's."""
        return self._inner.capabilities  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait for the inner backend."""
        self._inner.synchronize()

    def memory_stats(self) -> Mapping[str, int]:
        """The inner backend's."""
        return self._inner.memory_stats()  # type: ignore[no-any-return]

    def memory_cleanup(self) -> None:
        """Let the inner backend give memory back."""
        self._inner.memory_cleanup()

    def quantized_parts(self, x: Any, /) -> tuple[Any, Any, Any]:
        """The inner backend's."""
        return self._inner.quantized_parts(x)  # type: ignore[no-any-return]

    def quantized_from_parts(self, values: Any, scale: Any, zero: Any, /, dtype: Any, shape: tuple[int, ...]) -> Any:
        """The inner backend's."""
        return self._inner.quantized_from_parts(values, scale, zero, dtype=dtype, shape=shape)
