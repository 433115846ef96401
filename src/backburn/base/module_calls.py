"""Observing calls of modules: which module is running, and in which one a node was recorded.

While :data:`WATCHERS` is empty, this costs next to nothing. Otherwise :data:`CALL` holds the running call. A reverse
pass enters the calls in which its nodes were recorded, so that its operations have layers too. A replay of a recorded
step is a separate call, since no module runs in it.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from operator import itemgetter
from typing import Any, Literal

from backburn.base.errors import ArgumentError

#: Numbers nodes of graphs and calls of modules, in order of creation.
next_stamp = itertools.count().__next__

Kind = Literal["module", "backward", "replay"]


class ModuleCall:
    """A call of a module, the part of a reverse pass that belongs to one, a whole reverse pass, or a replay.

    ``path`` is the module's path in the outermost module being called ("" for that one, None without a module),
    ``name`` its class, ``outer`` the enclosing call, ``stamp`` its number, and ``start`` its time by
    :func:`time.perf_counter`. Watchers may add to ``notes``. ``failed`` is set if an error ended the call.
    """

    __slots__ = ("failed", "kind", "name", "notes", "outer", "path", "paths", "stamp", "start")

    def __init__(self, kind: Kind, name: str, path: str | None, outer: ModuleCall | None, paths: Paths) -> None:
        self.kind: Kind = kind
        self.name = name
        self.path = path
        self.outer = outer
        self.paths = paths
        self.stamp = next_stamp()
        self.start = time.perf_counter()
        self.notes: set[Any] = set()
        self.failed = False

    @property
    def layer(self) -> str | None:
        """The path of the innermost module being called."""
        call: ModuleCall | None = self
        while call is not None and call.path is None:
            call = call.outer
        return None if call is None else call.path

    def is_in(self, kind: Kind) -> bool:
        """Whether this is a call of ``kind``, or inside one."""
        call: ModuleCall | None = self
        while call is not None and call.kind != kind:
            call = call.outer
        return call is not None

    @property
    def chain(self) -> list[ModuleCall]:
        """The module calls around this one, the outermost first, and this one."""
        found: list[ModuleCall] = []
        call: ModuleCall | None = self
        while call is not None:
            if call.path is not None:
                found.append(call)
            call = call.outer
        return found[::-1]


#: The paths of the modules in a module, by identity.
Paths = dict[int, str]


class Watcher:
    """An observer of module calls."""

    def ended(self, call: ModuleCall, result: Any) -> None:
        """Called at the end of a call; ``result`` is None if it failed, and for reverse passes and replays."""

    def reversing(self, saved: Callable[[], Iterable[tuple[int, Any]]]) -> None:
        """Called at the start of a reverse pass; ``saved()`` gives the stamps of its nodes, with what each saved."""


#: The watchers of all threads.
WATCHERS: list[Watcher] = []
#: The running call, if there are watchers.
CALL: ContextVar[ModuleCall | None] = ContextVar("backburn_module_call", default=None)

#: The most beginnings and ends of calls that a thread remembers; nodes recorded earlier have no layer.
REMEMBERED = 1 << 17
_STAMP = itemgetter(0)


class _Thread(threading.local):
    """The beginnings and ends of calls in this thread: stamps, each with the call that ran from then on."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, ModuleCall | None]] = []


_THREAD = _Thread()


def module_call(module: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``forward(*args, **kwargs)``, as a call of ``module``."""
    outer = CALL.get()
    place, paths = _place(module, outer)
    call = ModuleCall("module", type(module).__name__, place, outer, paths)
    result = None
    try:
        _run(call)
        result = forward(*args, **kwargs)
        return result
    except BaseException:
        call.failed = True
        raise
    finally:
        _end(call, result)


@contextmanager
def _replay() -> Iterator[None]:
    outer = CALL.get()
    call = ModuleCall("replay", "replay", None, outer, {} if outer is None else outer.paths)
    try:
        _run(call)
        yield
    except BaseException:
        call.failed = True
        raise
    finally:
        _end(call, None)


_NOBODY = nullcontext()


def replay_call() -> Any:
    """A context in which the replay is a call, if there are watchers."""
    return _replay() if WATCHERS else _NOBODY


def in_layer(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which has just been called, wrapped so that replays run it in the present layer.

    Returns ``function`` itself if no watcher has left a note in the running call.
    """
    call = CALL.get() if WATCHERS else None
    if call is None or call.layer is None or not call.notes:
        return function
    kind: Kind = "backward" if call.is_in("backward") else "module"
    name, layer, paths = call.name, call.layer, call.paths

    def called(*operands: Any, **attributes: Any) -> Any:
        if not WATCHERS:
            return function(*operands, **attributes)
        outer = CALL.get()
        CALL.set(ModuleCall(kind, name, layer, outer, paths))
        try:
            return function(*operands, **attributes)
        finally:
            CALL.set(outer)

    return called


def reverse_calls(saved: Callable[[Any], Iterable[tuple[int, Any]]], root: Any) -> Any:
    """A context for a reverse pass; it gives a function to call with each node's stamp, or None without watchers.

    ``saved(root)`` is the argument of :meth:`Watcher.reversing`.
    """
    return _Reverse(partial(saved, root)) if WATCHERS else _NOBODY


class _Reverse:
    """A reverse pass, which follows the calls in which its nodes were recorded."""

    def __init__(self, saved: Callable[[], Iterable[tuple[int, Any]]]) -> None:
        self._saved = saved
        self._open: list[tuple[ModuleCall | None, ModuleCall]] = []
        self._last: ModuleCall | None = None

    def __enter__(self) -> Callable[[int], None]:
        for watcher in WATCHERS.copy():
            watcher.reversing(self._saved)
        self._begin(None, "backward", None)
        return self.visit

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        while self._open:
            self._open[-1][1].failed = error is not None
            self._leave()

    def visit(self, stamp: int) -> None:
        """Enter the calls in which the node of this stamp was recorded."""
        call = call_at(stamp)
        if call is self._last:
            return
        self._last = call
        chain = [] if call is None else call.chain
        inside = [forward for forward, _ in self._open[1:]]
        same = 0
        while same < min(len(chain), len(inside)) and chain[same] is inside[same]:
            same += 1
        while len(self._open) > same + 1:
            self._leave()
        for forward in chain[same:]:
            self._begin(forward, forward.name, forward.path)

    def _begin(self, forward: ModuleCall | None, name: str, path: str | None) -> None:
        outer = CALL.get()
        call = ModuleCall("backward", name, path, outer, {} if forward is None else forward.paths)
        self._open.append((forward, call))
        _run(call)

    def _leave(self) -> None:
        _end(self._open.pop()[1], None)


def call_at(stamp: int) -> ModuleCall | None:
    """The call of a module in which the node of this stamp was recorded, if this thread recorded it."""
    changes = _THREAD.changes
    i = bisect_right(changes, stamp, key=_STAMP)
    return changes[i - 1][1] if i else None


def _run(call: ModuleCall) -> None:
    """Make ``call`` the running one."""
    CALL.set(call)
    _note(call.stamp, call)


def _end(call: ModuleCall, result: Any) -> None:
    CALL.set(call.outer)
    _note(next_stamp(), call.outer)
    for watcher in WATCHERS.copy():
        watcher.ended(call, result)


def _note(stamp: int, call: ModuleCall | None) -> None:
    changes = _THREAD.changes
    changes.append((stamp, call))
    if len(changes) > REMEMBERED:
        del changes[: REMEMBERED // 2]


def _place(module: Any, outer: ModuleCall | None) -> tuple[str, Paths]:
    """The path of a module in the outermost one, and all paths there; a module in no other is outermost itself."""
    if outer is not None and (path := outer.paths.get(id(module))) is not None:
        return path, outer.paths
    try:
        return "", {id(x): path for path, x in module.named_modules()}
    except ArgumentError:  # such as a module that contains itself, which can still be called
        return "", {}
