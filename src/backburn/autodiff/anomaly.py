"""``detect_anomaly``: the first NaN or infinity, forward or backward, with the operation and the line that made it.

While it is on, the operations of ``Autodiff`` are replaced by ones that look at every float result, and the rules that
they record by ones that look at every gradient. Off, it leaves nothing behind: no test, no field, no cost.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from backburn.autodiff.decorator import Autodiff
from backburn.autodiff.graph import Node, OutputNode, Tracked
from backburn.backend.table import OPERATIONS
from backburn.base.contexts import Block, scoped
from backburn.base.errors import NumericalInstabilityError

_LOOKING: ContextVar[bool] = ContextVar("backburn_anomaly", default=False)
_lock = threading.Lock()
_depth = 0
_originals: dict[str, Any] = {}
_PACKAGES = (str(Path(__file__).parents[1]), "<backburn")


def detect_anomaly() -> Block[None]:
    """Raise :class:`NumericalInstabilityError` at the first NaN or infinity in a ``with`` block or decorated function.

    The message names the operation, its operands with shapes and ranges of values, and the line of the program that
    called it; for a gradient, those of the operation whose gradient it is. Only what runs on an autodiff backend is
    looked at. Every operation then waits for its result, so this is for finding a fault and not for training.

        >>> import backburn as bb
        >>> x = bb.asarray([0.0, 1.0]).require_grad()
        >>> with bb.detect_anomaly():
        ...     bb.log(x)
        Traceback (most recent call last):
            ...
        backburn.base.errors.NumericalInstabilityError: log: the result has 1 infinite value of 2. Operands: ...
    """
    return Block("detect_anomaly", _watching)


@contextmanager
def _watching() -> Iterator[None]:
    _install()
    try:
        with scoped(_LOOKING, True):
            yield
    finally:
        _remove()


def _install() -> None:
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            for name in OPERATIONS:
                _originals[name] = getattr(Autodiff, name)
                setattr(Autodiff, name, _looking(name, _originals[name]))


def _remove() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            for name, original in _originals.items():
                setattr(Autodiff, name, original)
            _originals.clear()


def _looking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of ``Autodiff`` that looks at its results, and has its rule look at the gradients."""

    @functools.wraps(original)
    def operation(self: Any, /, *operands: Any, **attributes: Any) -> Any:
        result = original(self, *operands, **attributes)
        if not _LOOKING.get():
            return result
        site = _user_line()
        for output in result if isinstance(result, tuple) else (result,):
            if output.__class__ is Tracked:
                problem = _problem(self, output)
                if problem:
                    raise NumericalInstabilityError(
                        f"{name}: the result has {problem}. Operands: {_described(self, operands)}. {site}"
                    )
                _watch(name, self, output.node, site)
        return result

    return operation


def _watch(name: str, k: Any, node: Node | None, site: str) -> None:
    """Let the rule of a recorded operation look at the gradients that it returns."""
    if isinstance(node, OutputNode):
        node = node.parents[0]
    if node is None or node.backward is None or hasattr(node.backward, "__wrapped__"):
        return
    rule = node.backward
    inner = k.inner_backend

    @functools.wraps(rule)
    def backward(below: Any, g: Any, at: Node) -> Any:
        gradients = tuple(rule(below, g, at))
        for gradient in gradients:
            if gradient is None or gradient.__class__ is list:
                continue
            problem = _problem(inner, gradient)
            if problem:
                incoming = "" if g.__class__ in (list, tuple) else f" The incoming gradient: {_described(inner, (g,))}."
                raise NumericalInstabilityError(
                    f"backward of {name}: a gradient of shape {list(gradient.shape)} has {problem}.{incoming} {site}"
                )
        return gradients

    node.backward = backward


def _host(k: Any, x: Any) -> Any:
    """The values of a primitive, without what any level notes beside them; inside ``vmap`` those of all examples."""
    while (inner := getattr(k, "inner_backend", None)) is not None:
        x, k = getattr(x, "value", x), inner
    return k.to_numpy(x)


def _problem(k: Any, x: Any) -> str:
    """What is not finite among the values of a float primitive, in words; empty when all are."""
    values = _host(k, x)
    if values.dtype.kind not in "fV":
        return ""
    nans = int((values != values).sum())
    infinities = int((abs(values) == float("inf")).sum())
    plural = "s" if infinities > 1 else ""
    parts = [f"{nans} NaN" if nans else "", f"{infinities} infinite value{plural}" if infinities else ""]
    found = " and ".join(p for p in parts if p)
    return f"{found} of {values.size}" if found else ""


def _described(k: Any, operands: Any) -> str:
    """``float32[2,3] from -1 to 2``, for each operand."""
    words = []
    for x in operands:
        if isinstance(x, (list, tuple)):
            words.append(f"[{_described(k, x)}]")
        elif hasattr(x, "shape"):
            values = _host(k, x)
            shape = f"{values.dtype}[{','.join(map(str, values.shape))}]"
            words.append(f"{shape} from {values.min()} to {values.max()}" if values.size else shape)
        else:
            words.append(repr(x))
    return ", ".join(words)


def _user_line() -> str:
    """Where the program called the operation: the last line on the stack that is not backburn's."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_PACKAGES) and "backburn_" not in frame.filename:
            return f"Called at {frame.filename}:{frame.lineno}: {frame.line}"
    return ""
