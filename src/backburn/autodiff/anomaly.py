"""``detect_anomaly``: find the operation and the line that produce the first NaN or infinity, forward or backward.

While it is enabled, the operations of ``Autodiff`` are replaced by ones that check every float result, and the rules
that they record by ones that check every gradient. Disabled, it costs nothing.
"""

from __future__ import annotations

import functools
import linecache
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from backburn.autodiff.forward import Forward
from backburn.autodiff.forward_codegen import Dual
from backburn.autodiff.graph import MovedGradient, Node, OutputNode, Tracked
from backburn.autodiff.reverse import Autodiff
from backburn.base.call_site import user_frame
from backburn.base.contexts import Block, scoped
from backburn.base.errors import NumericalInstabilityError
from backburn.ops.rules.slices import EntryGradient, SliceGradient
from backburn.ops.table import OPERATIONS

_WATCHED: ContextVar[bool] = ContextVar("backburn_anomaly", default=False)
#: The outermost operation that is running and the line that called it; inner operations are reported as this one.
_CALL_SITE: ContextVar[tuple[str, str] | None] = ContextVar("backburn_anomaly_inside", default=None)
#: Reasons for NaN in the gradient of an operation.
_REASONS: dict[str, str] = dict.fromkeys(
    ("eigh", "svd"),
    " Vectors of equal eigenvalues or singular values are not determined; where a function of them has a derivative, "
    "bb.grad, bb.jvp and bb.jacobian find it by calling the function again.",
)
_lock = threading.Lock()
_depth = 0
_originals: dict[tuple[type[Any], str], Any] = {}


def detect_anomaly() -> Block[None]:
    """Raise :class:`NumericalInstabilityError` at the first NaN or infinity in a ``with`` block or decorated function.

    The message names the operation, its operands with shapes and ranges of values, and the line of the program that
    called it; for a gradient, those of the operation whose gradient it is (only the name, if it was recorded outside
    the block). Values and gradients on autodiff backends are checked, and values and tangents in forward mode. Every
    operation then waits for its result, so use this for debugging only.

        >>> import backburn as bb
        >>> x = bb.asarray([0.0, 1.0]).require_grad()
        >>> with bb.detect_anomaly():
        ...     bb.log(x)
        Traceback (most recent call last):
            ...
        backburn.base.errors.NumericalInstabilityError: log: the result has 1 infinite value of 2. Operands: ...
    """
    return Block("detect_anomaly", _watch_block)


def watches() -> bool:
    """Whether operations are checked."""
    return _WATCHED.get()


def unwatched() -> AbstractContextManager[bool]:
    """A context in which operations are not checked: their infinities are intended, and absent from the result."""
    return scoped(_WATCHED, False)


@contextmanager
def _watch_block() -> Iterator[None]:
    _install()
    try:
        with scoped(_WATCHED, True):
            yield
    finally:
        _remove()


def _install() -> None:
    global _depth
    with _lock:
        if _depth == 0:
            for level in (Autodiff, Forward):
                for name in OPERATIONS:
                    _replace(level, name, _checked_operation)
            _replace(Autodiff, "backward", _checked_backward)
        _depth += 1  # now that all are replaced: Ctrl-C may come in between


def _replace(level: type[Any], name: str, make: Callable[[str, Any], Any]) -> None:
    # An original that is known already was replaced by a block whose beginning or end Ctrl-C interrupted.
    original = _originals.setdefault((level, name), getattr(level, name))
    setattr(level, name, make(name, original))


def _remove() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            for (level, name), original in _originals.items():
                setattr(level, name, original)
            _originals.clear()


def _checked_operation(name: str, original: Any) -> Callable[..., Any]:
    """An operation that checks its results, and makes its rule check the gradients."""

    @functools.wraps(original)
    def operation(self: Any, /, *operands: Any, **attributes: Any) -> Any:
        if not _WATCHED.get():
            return original(self, *operands, **attributes)
        inside = _CALL_SITE.get()
        called = inside or (name, _user_line())
        with scoped(_CALL_SITE, called):
            result = original(self, *operands, **attributes)
        for output in result if isinstance(result, tuple) else (result,):
            if inside is None:
                _check(name, self, output, operands, called[1])
            if output.__class__ is Tracked:
                _watch(called, output.node)
        return result

    return operation


def _check(name: str, k: Any, output: Any, operands: Any, site: str) -> None:
    """Raise where the result of an operation, or its tangent, is not finite."""
    if output.__class__ not in (Tracked, Dual):
        return
    tangent = getattr(output, "tangent", None)
    for what, value in (("result", output.value), ("tangent of the result", tangent)):
        problem = "" if value is None else _problem(k.inner_backend, value)
        if problem:
            raise NumericalInstabilityError(
                f"{name}: the {what} has {problem}. Operands: {_described(k, operands)}. {site}"
            )


def _checked_backward(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """``backward``, which first adds checks to rules that were recorded outside the block."""

    @functools.wraps(original)
    def backward(self: Any, tensor: Any, *args: Any, **options: Any) -> Any:
        if _WATCHED.get():
            seen: set[Node] = set()
            waiting = [getattr(tensor, "node", None)]
            while waiting:
                node = waiting.pop()
                if node is not None and node not in seen:
                    seen.add(node)
                    _watch((_name_of(node), "It was recorded outside of detect_anomaly()"), node)
                    waiting.extend(node.parents)
        return original(self, tensor, *args, **options)

    return backward


def _name_of(node: Node) -> str:
    """The operation of a node, from the file name under which its rule was compiled."""
    file = getattr(getattr(node.backward, "__code__", None), "co_filename", "")
    return file.removeprefix("<backburn.autodiff ").removesuffix(">") if file.startswith("<backburn") else "a function"


def _watch(called: tuple[str, str], node: Node | None) -> None:
    """Make the rule of a recorded operation check the gradients that it returns."""
    if isinstance(node, OutputNode):
        node = node.parents[0]
    if node is None or node.backward is None or hasattr(node.backward, "__wrapped__"):
        return
    rule = node.backward
    name, site = called

    @functools.wraps(rule)
    def backward(below: Any, g: Any, at: Node) -> Any:
        with scoped(_CALL_SITE, called):
            gradients = tuple(rule(below, g, at))
        for found in gradients if _CALL_SITE.get() is None else ():
            if found is None or found.__class__ is list:
                continue
            gradient = found.gradient if found.__class__ in (SliceGradient, EntryGradient, MovedGradient) else found
            home = found.backend if found.__class__ is MovedGradient else below
            tangent = getattr(gradient, "tangent", None)
            problem = _problem(home, gradient) or (tangent is not None and _problem(home.inner_backend, tangent))
            if problem:
                incoming = "" if g.__class__ in (list, tuple) else f" The incoming gradient: {_described(below, (g,))}."
                raise NumericalInstabilityError(
                    f"backward of {name}: a gradient of shape {list(gradient.shape)} has {problem}.{incoming}"
                    f"{_REASONS.get(name, '')} {site}"
                )
        return gradients

    node.backward = backward


def host_values(k: Any, x: Any) -> Any:
    """The values of a primitive, without what any level adds to them; inside ``vmap``, those of all examples."""
    while (inner := getattr(k, "inner_backend", None)) is not None:
        x, k = getattr(x, "value", x), inner
    return k.to_numpy(x)


def _problem(k: Any, x: Any) -> str:
    """The number of NaN and infinite values of a float primitive, in words; empty if all are finite."""
    values = host_values(k, x)
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
            values = host_values(k, x)
            shape = f"{values.dtype}[{','.join(map(str, values.shape))}]"
            words.append(f"{shape} from {values.min()} to {values.max()}" if values.size else shape)
        else:
            words.append(repr(x))
    return ", ".join(words)


def _user_line() -> str:
    """The line of the program that called the operation."""
    frame = user_frame()
    assert frame is not None
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"Called at {frame.f_code.co_filename}:{frame.f_lineno}: {line}"
