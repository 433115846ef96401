"""Tensors of four kinds, and functions of them under their Array API names."""

import sys
from types import ModuleType
from typing import Any, NoReturn


class _Tensors(ModuleType):
    """This package, called as ``torch.tensor`` is."""

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError("backburn.tensor is a package; bb.asarray(data) makes a tensor")


sys.modules[__name__].__class__ = _Tensors
