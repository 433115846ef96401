"""Implicit conversions of tensors by other libraries, rejected where a derivative would be lost.

``np.linalg.norm(x)`` and ``math.sqrt(x)`` convert ``x`` to an array or a number: a constant, so the derivative would
lack what is computed from it. The error says what to write instead of the called function, which it finds on the stack:
a conversion that succeeds costs nothing.
"""

from __future__ import annotations

import linecache
import re
import sys
from types import FrameType
from typing import Any

from backburn.base.contexts import RECORDING, TRANSFORMS
from backburn.base.errors import HostConversionError
from backburn.batching import Batched
from backburn.hints import instead_of
from backburn.tensor.core.levels import has_history, inner_of
from backburn.tensor.core.messages import describe

#: The code to write in place of conversions.
_CONVERSIONS = {
    **dict.fromkeys(
        ("array", "asarray", "asanyarray", "ascontiguousarray"), "x itself, or bb.stack([x, y]) of several"
    ),
    **dict.fromkeys(("float", "float16", "float32", "float64", "complex"), "x itself, or bb.astype(x, dtype)"),
    **dict.fromkeys(("from_dlpack", "as_tensor", "tensor"), "x.detach(), a constant"),
}


def refuse_array(x: Any, what: str) -> None:
    """Raise :class:`HostConversionError` for a conversion of a tensor with history to an array."""
    if RECORDING.get() and has_history(x):
        raise _error(x, what)


def refuse_number(x: Any) -> None:
    """Raise :class:`HostConversionError` for a conversion to a number inside the transform that differentiates it.

    Outside of transforms ``float(loss)`` is allowed: training loops print their loss.
    """
    if not x._dtype.has_gradient or not RECORDING.get() or not (running := TRANSFORMS.get()):
        return
    k: Any = x._backend
    primitive = x._primitive
    while (inner := inner_of(k)) is not None:
        if k.is_tracked(primitive) and any(k is level for level in running):
            raise _error(x, "a Python number")
        primitive = k.unmapped(primitive) if k.__class__ is Batched else k.inner(primitive)
        k = inner


def _error(x: Any, what: str) -> HostConversionError:
    called = _caller()
    written = f"{called} makes" if called else "This makes"
    name = called.rpartition(".")[2]
    hint = _CONVERSIONS.get(name) or (instead_of(name) if name else None)
    advice = f"write {hint}" if hint else "write it with functions of backburn"
    return HostConversionError(
        f"{written} {what} of {describe((x,))}, which is being differentiated: the derivative would lose what is "
        f"computed from it. Instead, {advice}; for a constant, x.numpy(), x.item() or x.detach()"
    )


def _caller() -> str:
    """The function of another library that converts a tensor, from the stack or, if it is in C, from the calling line.

    Empty if neither is found.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) == "backburn":
        frame = frame.f_back
    found, library = "", frame and _package(frame)
    while frame is not None and _package(frame) == library and "site-packages" in frame.f_code.co_filename:
        found = f"{library}.{frame.f_code.co_name}" if frame.f_code.co_name[:1] not in "_<" else found
        frame = frame.f_back
    return found or (_written(frame) if frame is not None else "")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _written(frame: FrameType) -> str:
    """The name of the function that a frame is calling, as written in its source; empty without the source."""
    position = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    first, last, start, end = position
    if first is None or last is None or start is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, first, frame.f_globals)
    call = line.encode()[start : end if first == last else None].decode(errors="replace")
    match = re.match(r"([A-Za-z_][\w.]*)\(", call)
    return match.group(1) if match else ""
