"""Tensors of five kinds, and functions of them under their Array API names."""

import sys
from types import ModuleType
from typing import Any, NoReturn


class _Tensors(ModuleType):
    """This package; calling it like ``torch.tensor`` raises an error."""

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError("backburn.tensor is a package; bb.asarray(data) makes a tensor")


sys.modules[__name__].__class__ = _Tensors
