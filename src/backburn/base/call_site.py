"""Which public function the user called, read off the stack when an error is raised.

Public functions call one another and leave most checks to the innermost, but an error should name the function that the
user called. Passing names down, or entering a context for each call, would cost every call; walking up the stack costs
only those that fail.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

#: The modules whose functions users call, and what users write for them.
NAMESPACES = {
    "backburn._namespace": "bb",
    "backburn.nn.functional": "bb.nn.functional",
    "backburn.tensor.linalg.namespace": "bb.linalg",
    "backburn.tensor.fourier": "bb.fourier",
    "backburn.tensor.random": "bb.random",
    "backburn.nn": "bb.nn",
    "backburn.nn.init": "bb.nn.init",
    "backburn.optim": "bb.optim",
}
#: The functions that operators call.
_OPERATORS = {
    "__add__": "add", "__radd__": "add", "__sub__": "subtract", "__rsub__": "subtract", "__mul__": "multiply",
    "__rmul__": "multiply", "__truediv__": "divide", "__rtruediv__": "divide", "__matmul__": "matmul",
    "__rmatmul__": "matmul", "__floordiv__": "floor_divide", "__rfloordiv__": "floor_divide", "__mod__": "remainder",
    "__rmod__": "remainder", "__divmod__": "divmod", "__rdivmod__": "divmod", "__pow__": "pow", "__rpow__": "pow",
    "__eq__": "equal", "__ne__": "not_equal", "__lt__": "less", "__le__": "less_equal", "__gt__": "greater",
    "__ge__": "greater_equal", "__and__": "bitwise_and", "__rand__": "bitwise_and", "__or__": "bitwise_or",
    "__ror__": "bitwise_or", "__xor__": "bitwise_xor", "__rxor__": "bitwise_xor", "__lshift__": "bitwise_left_shift",
    "__rlshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift", "__rrshift__": "bitwise_right_shift",
}  # fmt: skip
_PUBLIC_PACKAGES = ("backburn.tensor.", "backburn.transforms.", "backburn.nn.", "backburn.optim.")


def called_function() -> str | None:
    """The name of the public function that the user called: the outermost one in the run of our frames on the stack."""
    found: str | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (module := frame.f_globals.get("__name__", "")).startswith("backburn."):
        if module.startswith(_PUBLIC_PACKAGES):
            found = _public_name(frame) or found
        frame = frame.f_back
    return found


def _public_name(frame: FrameType) -> str | None:
    """The public name of the function that runs in ``frame``; None if it is private.

    A method of ``Tensor`` goes by its own name, one of another class by ``Class.method``, ``__init__`` and ``forward``
    by the class, and a closure (such as the function that ``grad`` returns) by the function that made it.
    """
    path, home = frame.f_code.co_qualname, frame.f_globals
    maker, inside, _ = path.partition(".<locals>")
    owner, _, name = path.rpartition(".")
    if not inside and name.startswith("_") and not name.startswith("__"):
        return None
    own = {n: home.get(n) for n in home.get("__all__", ())}
    places: list[dict[str, Any]] = [own, *(vars(sys.modules.get(n, sys)) for n in NAMESPACES)]
    if name in ("__init__", "forward") and not inside:
        lineage = type(frame.f_locals.get("self")).__mro__  # in which the base that has the method may not be public
        return next((c.__name__ for c in lineage if any(public.get(c.__name__) is c for public in places)), None)
    for public in places:
        if inside:
            if maker in public.get("__all__", public) and public[maker].__module__ == home["__name__"]:
                return maker
            continue
        if (owner or name) not in public.get("__all__", public):
            continue
        function = vars(public[owner]).get(name) if owner else public[name]
        if getattr(getattr(function, "__wrapped__", function), "__code__", None) is frame.f_code:
            return _OPERATORS.get(name) if name.startswith("__") else name if owner in ("", "Tensor") else path
    return None
