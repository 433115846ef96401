"""Handlers: the functions that compute ONNX operators with functions of backburn.

A handler's signature is its declaration. Positional parameters are the inputs, and their annotations say what the
handler takes: ``Tensor``, ``Host`` for values that it reads as a NumPy array (axes, shapes), ``Value`` for anything.
Keyword parameters are the attributes that it reads; an attribute without a parameter is refused, not ignored. Two
keywords are not attributes: ``call``, which describes the node (:class:`Call`), and ``run``, the running call of the
model (:class:`backburn.onnx.graph.Run`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

#: Numbers on the host.
Host: TypeAlias = NDArray[Any]
#: A tensor, numbers on the host, a list of tensors, or None.
Value: TypeAlias = Any


class UseBody(Exception):
    """A handler does not support an option: use the standard's function body, or raise ``Unsupported`` without one."""


@dataclass(frozen=True)
class Call:
    """Facts about a node that a handler may read besides inputs and attributes."""

    operator: str
    opset: int
    #: The number of outputs, without unnamed ones at the end.
    outputs: int
    #: The name of the node or of its first output.
    name: str
    #: The keys of the node's metadata.
    notes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Handler:
    """A handler and its declaration."""

    function: Callable[..., Any]
    #: For each input ``"Tensor"``, ``"Host"`` or ``"Value"``; the last stands for all that follow, if ``variadic``.
    kinds: tuple[str, ...]
    required: int
    variadic: bool
    attributes: frozenset[str]
    wants_call: bool
    wants_run: bool

    def kind(self, place: int) -> str:
        """How the handler takes an input."""
        return self.kinds[min(place, len(self.kinds) - 1)] if self.kinds else "Value"


#: The handlers of each operator with the first opset that they compute, newest first.
_HANDLERS: dict[str, list[tuple[int, Handler]]] = {}
#: Functions that compute operators on the host if all inputs are there.
_ON_HOST: dict[str, Handler] = {}


def operator(*names: str, since: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the handler of operators, from an opset on."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        handler = _described(function)
        for name in names:
            entries = _HANDLERS.setdefault(name, [])
            entries.append((since, handler))
            entries.sort(key=lambda entry: -entry[0])
        return function

    return enter


def on_host(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that computes operators on the host, or returns NotImplemented for large results."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _ON_HOST[name] = _described(function)
        return function

    return enter


def handler_of(name: str, opset: int) -> Handler | None:
    """The handler of an operator of ONNX's own domain at an opset; None if there is none."""
    return next((handler for since, handler in _HANDLERS.get(name, ()) if since <= opset), None)


def host_handler_of(name: str) -> Handler | None:
    """The function that computes an operator on the host; None if there is none."""
    return _ON_HOST.get(name)


def handled() -> frozenset[str]:
    """The names of all operators that have a handler."""
    return frozenset(_HANDLERS)


def _described(function: Callable[..., Any]) -> Handler:
    kinds: list[str] = []
    attributes: set[str] = set()
    required, variadic = 0, False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            attributes.add(name)
            continue
        kinds.append(str(parameter.annotation).split(" ")[0])
        if kinds[-1] not in ("Tensor", "Host", "Value"):
            raise TypeError(f"{function.__name__}: the input {name} is a Tensor, Host or Value, not {kinds[-1]}")
        variadic = variadic or parameter.kind is parameter.VAR_POSITIONAL
        required += parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
    known = frozenset(attributes - {"call", "run"})
    return Handler(function, tuple(kinds), required, variadic, known, "call" in attributes, "run" in attributes)
