"""Layers for one, two and three spatial axes: a base class, and a subclass for each rank that checks its input."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any, ClassVar

from backburn.base.errors import ShapeError
from backburn.nn.module import Module
from backburn.tensor.classes import Tensor
from backburn.tensor.core.dispatch import tensor_operand
from backburn.tensor.core.messages import describe


class Spatial(Module):
    """The base class of layers for inputs ``(examples, channels, *spatial)``.

    ``class Pool2d(Pool, rank=2)`` is ``Pool`` for two spatial axes: its inputs are checked, and its docstring is
    completed by ``Pool.ABOUT``, in which ``NAME`` is the name of the class and ``<8>`` one length for each axis.
    """

    #: The number of spatial axes; None for any.
    RANK: ClassVar[int | None] = None
    #: Whether a layer of rank 1 also takes inputs (examples, channels).
    TAKES_VECTORS: ClassVar[bool] = False
    ABOUT: ClassVar[str] = ""

    def __init_subclass__(cls, rank: int | None = None, **kwargs: Any) -> None:
        """Set the rank of a class, and complete its docstring."""
        super().__init_subclass__(**kwargs)
        if rank is not None:
            cls.RANK = rank
            about = re.sub(r"<(\d+)>", lambda found: ", ".join([found[1]] * rank), cls.ABOUT)
            cls.__doc__ = f"{cls.__doc__}\n\n{cleandoc(about).replace('NAME', cls.__name__)}\n"

    @property
    def _rank(self) -> int:
        """The number of spatial axes, in a class with a rank."""
        assert self.RANK is not None
        return self.RANK

    def _check(self, x: Tensor) -> None:
        """Raise :class:`ShapeError` for an input of another rank."""
        layer, rank = type(self).__name__, self.RANK
        tensor_operand(layer, x)
        if rank is None or x.ndim == rank + 2 or (x.ndim == 2 and rank == 1 and self.TAKES_VECTORS):
            return
        hint = "; expand_dims adds an axis for a single example" if x.ndim == rank + 1 else ""
        axes = f"the input (examples, channels, *spatial) has {rank + 2} axes, not {x.ndim}"
        raise ShapeError(f"{layer}: {axes}: {describe((x,))}{hint}")
