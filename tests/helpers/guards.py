"""Memory guards for tests: NaN in uninitialized memory, canaries around results, comparison of operands.

Inside :func:`guarded`, arrays that the backend allocates with ``backburn_numpy.runtime.memory.empty`` or ``np.empty``
have canaries before and after them and are filled with NaN (integers with -1, bools with 255), as are workspaces and
packed weights. When such an array dies, its memory is filled again and kept for a while to detect writes, as are
blocks returned to the pool until their reuse. Native programs fill their arenas before each replay; their operands and
constants, the inputs of whole replays and the outputs of earlier replays are compared with copies. Outside the context
none of this costs anything.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from weakref import WeakSet, ref

import numpy as np

from backburn.base.errors import BackburnError
from backburn.programs.executable import CompiledProgram
from backburn.programs.ir import Variable
from backburn_numpy import compiled, tuning
from backburn_numpy.programs import layout
from backburn_numpy.programs.native_program import NativeProgram
from backburn_numpy.runtime import memory

#: The size in bytes of the canary on either side of an array, and the value of each byte.
CANARY, PATTERN = 1 << 8, 0xA5
UNTOUCHED = bytes([PATTERN]) * CANARY
#: The byte that fills uninitialized memory and that of dead arrays: floats of such bytes are NaN.
UNWRITTEN = 0xFF
#: The most bytes of dead arrays that are kept to detect writes.
KEPT = 1 << 26

#: Modules whose ``np.empty`` is not replaced: it allocates guarded memory, or probes the layout of arrays.
UNCHANGED = (memory.__name__, compiled.__name__)

_found: list[str] = []
_alive: dict[int, ref[_Guarded]] = {}
_dead: deque[Any] = deque()
_dead_size = 0
#: Outputs of recent replays and their bytes; weak, because reference counts decide which buffers are reused.
_outputs: deque[tuple[ref[Any], bytes]] = deque(maxlen=256)
#: Native programs that fill their arena first.
_filled: WeakSet[NativeProgram] = WeakSet()
_lock = threading.RLock()
#: The bytes of each block returned to the pool and filled, by its address.
_pooled: dict[int, int] = {}
#: The allocator that :func:`guarded` replaces; large arrays still come from its pool.
_from_pool: Callable[..., Any] = memory.empty


class MemoryFault(BackburnError, AssertionError):
    """Something was written to memory that must not change."""


class _Guarded(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of an array with its canaries; the base of the array, which dies with it."""

    def __del__(self) -> None:
        global _dead_size
        if sys.is_finalizing() or not isinstance(self.base, np.ndarray):
            return
        with _lock:
            _alive.pop(id(self), None)
            _look_at(self)
            raw = self.base
            raw[:] = UNWRITTEN
            _dead.append(raw)
            _dead_size += raw.size
            while _dead_size > KEPT:
                _bury(_dead.popleft())


def _bury(raw: Any) -> None:
    """Free the memory of a dead array, and record whether it was written."""
    global _dead_size
    _dead_size -= raw.size
    if not (raw == UNWRITTEN).all():
        _found.append(f"memory of {raw.size - 2 * CANARY} bytes was written after its array had died")
    elif raw.size >= tuning.MIN_POOLED_BYTES + 2 * CANARY:
        _pooled[compiled.address(raw)] = raw.size


def _look_at(whole: Any) -> None:
    """Record changed canaries."""
    raw, size = whole.base, whole.base.size - 2 * CANARY
    for where, part in (("before", raw[:CANARY]), ("after", raw[-CANARY:])):
        if part.tobytes() != UNTOUCHED and (wrong := np.flatnonzero(part != PATTERN)).size:
            _found.append(f"{wrong.size} bytes {where} an array of {size} bytes were written")
            part[:] = PATTERN


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """:func:`backburn_numpy.runtime.memory.empty` between canaries."""
    size = dtype.itemsize
    for n in shape:
        size *= n
    is_pooled = size >= tuning.MIN_POOLED_BYTES
    raw = _from_pool((size + 2 * CANARY,), np.dtype(np.uint8)) if is_pooled else memory.aligned(size + 2 * CANARY)
    raw = raw.view(memory._Raw)  # NumPy would skip a base of the array's class
    if is_pooled:
        with _lock:
            filled = _pooled.pop(compiled.address(raw), 0)
            if not (raw[:filled] == UNWRITTEN).all():
                _found.append(f"a block of {filled} bytes was written in the pool")
    raw[:CANARY] = raw[CANARY + size :] = PATTERN
    raw[CANARY : CANARY + size] = UNWRITTEN
    whole = np.ndarray.__new__(_Guarded, (size,), np.uint8, raw, CANARY)
    with _lock:
        _alive[id(whole)] = ref(whole)
    return np.ndarray(shape, dtype, whole)


def _numpy_empty(shape: Any, dtype: Any = float, **options: Any) -> Any:
    """``np.empty`` between canaries."""
    dtype = np.dtype(dtype)
    if options or dtype.hasobject or dtype.subdtype is not None:
        return np.empty(shape, dtype, **options)
    return _empty((shape,) if isinstance(shape, int) else tuple(shape), dtype)


class _Filled:
    """The kernel of a native program, with its arena filled with NaN first; called under the program's lock."""

    def __init__(self, run: Callable[..., Any], arena: Any) -> None:
        self.run, self.arena = run, arena

    def __call__(self, *arguments: Any) -> Any:
        self.arena[:] = UNWRITTEN
        return self.run(*arguments)


def check(dead: bool = True) -> None:
    """Raise a :class:`MemoryFault` if a canary, or with ``dead`` the memory of a dead array, was overwritten."""
    with _lock:
        for known in [*_alive.values()]:
            if (whole := known()) is not None:
                _look_at(whole)
        while dead and _dead:
            _bury(_dead.popleft())
        found, _found[:] = [*_found], []
    if found:
        raise MemoryFault("; ".join(found))


def _copies(arrays: list[Any]) -> list[tuple[Any, Any]]:
    return [(x, x.tobytes()) for x in arrays if x.__class__ is np.ndarray]


def _compare(before: list[tuple[Any, Any]], what: str) -> None:
    """Raise if an array has changed."""
    for x, held in before:
        if x.tobytes() != held:
            raise MemoryFault(f"{what} ({x.dtype}{list(x.shape)}) was written over")


def _list_call(original: Callable[..., Any], self: NativeProgram, *given: Any) -> Any:
    """A call of a native program with NaN in its arena, which must not change its operands and constants."""
    name = " ".join(dict.fromkeys(call.operation for call in self.makers))
    for x, v in zip(given, self.given, strict=True):
        if isinstance(v, Variable) and (x.shape, x.dtype.name) != (v.shape, v.dtype.name):
            words = f"{x.dtype}{list(x.shape)}, and {v.dtype}{list(v.shape)} was recorded"
            raise MemoryFault(f"native program of {name}: it is given {words}")
    operands, constants = _copies([*given]), _copies(self.constants)
    if not isinstance(self._run, _Filled):
        self._run = _Filled(self._run, self.arena)
        _filled.add(self)
    found = original(self, *given)
    _compare(operands, f"native program of {name}: an operand")
    _compare(constants, f"native program of {name}: a constant")
    check(dead=False)
    return found


def _replay(original: Callable[..., Any], self: CompiledProgram, inputs: Any, *rest: Any) -> Any:
    """A replay that must not change its inputs or live outputs of earlier replays."""
    before = _copies([*inputs])
    found = original(self, inputs, *rest)
    _compare(before, "replay: an input")
    for known, held in _outputs.copy():
        if (x := known()) is not None and x.tobytes() != held:
            raise MemoryFault(f"replay: an output of an earlier replay ({x.dtype}{list(x.shape)}) was written over")
    _outputs.extend((ref(x), held) for x, held in _copies(found))
    check(dead=False)
    return found


@contextmanager
def guarded() -> Iterator[None]:
    """A context with guards in all threads, which raise :class:`MemoryFault` at its end at the latest.

    >>> import backburn as bb
    >>> with guarded():
    ...     double = bb.capture(lambda x: x * 2.0, state=False)
    ...     [double(bb.asarray([1.0, 2.0], backend="capture(numpy)")).tolist() for _ in range(3)]
    [[2.0, 4.0], [2.0, 4.0], [2.0, 4.0]]
    """
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, new: Any) -> None:
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    append_empty = memory.append_empty
    numpy = ModuleType("numpy")
    numpy.__dict__.update(vars(np), empty=_numpy_empty)
    for module in [m for n, m in sys.modules.items() if n.partition(".")[0] == "backburn_numpy"]:
        if getattr(module, "empty", None) is _from_pool:
            replace(module, "empty", _empty)
        if getattr(module, "append_empty", None) is append_empty:
            replace(module, "append_empty", lambda arrays, kinds: arrays.extend(_empty(*x[:2]) for x in kinds))
        if getattr(module, "np", None) is np and module.__name__ not in UNCHANGED:
            replace(module, "np", numpy)
    replace(layout, "aligned", lambda size: _empty((size,), np.dtype(np.uint8)))
    list_call, replay = NativeProgram.__call__, CompiledProgram.__call__
    replace(NativeProgram, "__call__", lambda self, *given: _list_call(list_call, self, *given))
    replace(CompiledProgram, "__call__", lambda self, inputs, *rest: _replay(replay, self, inputs, *rest))
    try:
        yield
        check()
    finally:
        _outputs.clear()
        _pooled.clear()
        for one in [*_filled]:
            one._run = one._run.run
        _filled.clear()
        for owner, name, old in reversed(replaced):
            setattr(owner, name, old)
