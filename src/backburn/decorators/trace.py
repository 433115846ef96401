"""``Trace``: a decorator that records when each operation ran, in which layer, and the memory of its results."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar
from weakref import ReferenceType, finalize, ref

from backburn.base.errors import SpecError
from backburn.base.module_calls import CALL, WATCHERS, ModuleCall, Watcher, call_at
from backburn.decorators.profile import Profile
from backburn.ops.rules.work import multiply_adds_of

#: The most entries of a list operand that an event shows.
SHOWN = 16


@dataclass(frozen=True)
class LayerUsage:
    """Time and memory of the operations that a layer itself called, without those of its submodules.

    ``calls`` counts operations; ``forward`` and ``backward`` are seconds in each pass. Of the results, ``alive`` are
    the bytes still in use, ``peak`` the most at one time, and ``saved`` the most that nodes of the layer held at the
    start of a reverse pass. A saved result counts if a layer computed it, for the first layer that saved it.
    """

    calls: int
    forward: float
    backward: float
    alive: int
    peak: int
    saved: int


class _Usage:
    """A :class:`LayerUsage` being accumulated."""

    __slots__ = ("alive", "backward", "calls", "forward", "peak", "saved")

    def __init__(self) -> None:
        self.calls = self.alive = self.peak = self.saved = 0
        self.forward = self.backward = 0.0

    def add(self, nbytes: int) -> None:
        """Change the bytes in use."""
        self.alive += nbytes
        self.peak = max(self.peak, self.alive)


#: A live result: its bytes, the layer that computed it, and a weak reference with a callback for its end.
_Held = tuple[int, str | None, ReferenceType[Any]]


class Trace(Profile):
    """A :class:`Profile` that also keeps a timeline, with layers and reverse passes, and the memory of each layer.

    Models, data and results are those of the wrapped backend: ``autodiff(trace(numpy))`` instead of
    ``autodiff(numpy)``. :meth:`save` writes the timeline for Perfetto (https://ui.perfetto.dev) or Chrome
    (``chrome://tracing``): operations with the shapes and dtypes of their tensors and their multiply-adds, nested
    in module calls. Operations of a reverse pass, of any order, have the layer of the operation that they
    differentiate. Each replay of a captured step, on ``capture(trace(numpy))``, is a span; operations in it have the
    layer in which they were recorded, unless they are joined.

    :attr:`layers` has time and memory per layer: bytes alive, peak bytes, and bytes saved for the reverse pass.
    ``trace(null)`` finds the memory without computing. Views count with the tensor whose memory they share.

    The last ``limit`` events are kept, as in ``trace(numpy, limit=10000)``. Layers are known in the thread that calls
    them, and in its reverse passes. While a trace is in use, module calls on other backends also take a few
    microseconds longer. Raises :class:`SpecError` for a limit that is not a positive integer.

        >>> import backburn as bb
        >>> with bb.use_backend("autodiff(trace(numpy))"):
        ...     model = bb.nn.Sequential(bb.nn.Linear(4, 8), bb.nn.Tanh(), bb.nn.Linear(8, 1))
        ...     x = bb.ones((16, 4))
        >>> trace = bb.load_backend("trace(numpy)")
        >>> trace.reset()
        >>> gradients = model(x).sum().backward()
        >>> found = [event for event in trace.events if event["cat"] == "backward" and event["args"]["layer"]]
        >>> [(event["name"], event["args"]["layer"]) for event in found[:3]]
        [('linear_weight_backward', '2'), ('matmul', '2'), ('tanh_slope', '1')]
        >>> trace.layers["1"].saved                       # the argument and the result of tanh
        1024
    """

    name: ClassVar[str] = "trace"

    def __init__(self, wrapped: Any, limit: int = 1_000_000) -> None:
        """Wrap a backend, which is not changed; nothing is recorded yet."""
        super().__init__(wrapped)
        given: object = limit
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise SpecError(f"trace: limit is a number of events, at least 1, not {limit!r}")
        self._limit = limit
        self._events: deque[dict[str, Any]] = deque(maxlen=limit)
        self._usages: dict[str | None, _Usage] = {}
        self._held: dict[int, _Held] = {}
        self._bytes = _Usage()
        self._start = time.perf_counter()
        self._threads: dict[int, str] = {}
        self._guard = threading.RLock()  # callbacks of weak references may run while this thread holds it
        self._watch: _Watch | None = None

    @property
    def spec(self) -> str:
        """The expression, with the limit if it is not the default."""
        return f"{self.name}({self._inner.spec}{'' if self._limit == 1_000_000 else f', limit={self._limit}'})"

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events since the last :meth:`reset`, in Chrome's format, ordered by start; times are microseconds.

        Operations have the category "forward", "backward" or, outside of modules and reverse passes, "other"; spans
        "module", "backward pass" and "replay"; events of phase "C" have the bytes of all live results.
        """
        with self._guard:
            found = list(self._events)
        return sorted(found, key=lambda event: (event["ts"], -event.get("dur", 0.0)))

    @property
    def layers(self) -> Mapping[str | None, LayerUsage]:
        """Time and memory by layer path, in the order of their first operations; None is outside of layers."""
        with self._guard:
            return {
                layer: LayerUsage(u.calls, u.forward, u.backward, u.alive, u.peak, u.saved)
                for layer, u in self._usages.items()
            }

    @property
    def peak(self) -> int:
        """The peak bytes of all live results since the last :meth:`reset`."""
        return self._bytes.peak

    def layer_table(self) -> str:
        """The layers as a table: operations, times in milliseconds, peak bytes and saved bytes."""
        rows = [("layer", "calls", "forward ms", "backward ms", "peak bytes", "saved bytes")]
        layers = self.layers
        for layer, u in layers.items():
            name = "(outside)" if layer is None else layer or "(model)"
            times = f"{u.forward * 1e3:.3f}", f"{u.backward * 1e3:.3f}"
            rows.append((name, str(u.calls), *times, f"{u.peak:,}", f"{u.saved:,}"))
        sums = [sum(getattr(u, name) for u in layers.values()) for name in ("calls", "forward", "backward", "saved")]
        times = f"{sums[1] * 1e3:.3f}", f"{sums[2] * 1e3:.3f}"
        rows.append(("all together", str(sums[0]), *times, f"{self.peak:,}", f"{sums[3]:,}"))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        return "\n".join(
            "  ".join(c.rjust(n) if i else c.ljust(n) for i, (c, n) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as a JSON file of trace events. Raises OSError if it cannot be written."""
        pid = os.getpid()
        about = [{"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": self.spec}}]
        with self._guard:
            threads = dict(self._threads)
        about += [
            {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
            for tid, name in threads.items()
        ]
        text = json.dumps({"traceEvents": [*about, *self.events], "displayTimeUnit": "ms"}, allow_nan=False)
        Path(path).write_text(text, encoding="utf-8")

    def reset(self) -> None:
        """Forget all events, times and peaks; live results remain counted."""
        super().reset()
        with self._guard:
            self._events.clear()
            self._start = time.perf_counter()
            self._usages = {}
            self._bytes.peak = self._bytes.alive
            for nbytes, layer, _ in self._held.values():
                if layer is not None:
                    self._usage(layer).add(nbytes)

    # ---- operations ----

    def _run(self, name: str, function: Callable[..., Any], operands: Any, attributes: Mapping[str, Any]) -> Any:
        if self._watch is None:
            self._begin_to_watch()
        call = CALL.get()
        if call is not None:
            call.notes.add(id(self))
        return super()._run(name, function, operands, attributes)

    def _note(
        self, name: str, operands: Any, attributes: Mapping[str, Any], result: Any, start: float, end: float
    ) -> None:
        call = CALL.get()
        layer = None if call is None else call.layer
        is_backward = call is not None and call.is_in("backward")
        args: dict[str, Any] = {"layer": layer, "operands": self._shown(operands), "result": self._shown((result,))}
        if work := multiply_adds_of(name, operands, attributes, result):
            args["multiply_adds"] = work
        if call is not None and call.is_in("replay"):
            args["replayed"] = True
        category = "backward" if is_backward else "other" if layer is None else "forward"
        with self._guard:
            usage = self._usage(layer)
            usage.calls += 1
            if is_backward:
                usage.backward += end - start
            else:
                usage.forward += end - start
            for x in result if isinstance(result, (list, tuple)) else (result,):
                self._hold(x, layer)
            self._append(name, category, start, end, args)
            counted = {"name": "memory", "cat": "memory", "ph": "C", "ts": self._time(end), "pid": os.getpid()}
            self._events.append({**counted, "tid": 0, "args": {"bytes": self._bytes.alive}})

    def _shown(self, values: Iterable[Any]) -> list[Any]:
        """Operands as JSON values: tensors as dtype and shape, others as their repr."""
        found: list[Any] = []
        for x in values:
            if isinstance(x, (list, tuple)):
                found.append(self._shown(x[:SHOWN]) + ["..."] * (len(x) > SHOWN))
            elif hasattr(x, "shape"):
                try:
                    found.append(f"{self._inner.dtype(x)}{list(x.shape)}")
                except Exception:  # an array of the host, or of another level
                    found.append(f"{getattr(x, 'dtype', type(x).__name__)}{list(x.shape)}")
            elif x is not None:
                found.append(repr(x)[:80])
        return found

    def _append(self, name: str, category: str, start: float, end: float, args: dict[str, Any]) -> None:
        """Add a complete event."""
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        begin = self._time(start)
        self._events.append(
            {
                "name": name, "cat": category, "ph": "X", "ts": begin, "dur": self._time(end) - begin,
                "pid": os.getpid(), "tid": thread, "args": args,
            }
        )  # fmt: skip

    def _time(self, seconds: float) -> float:
        return (seconds - self._start) * 1e6

    def _usage(self, layer: str | None) -> _Usage:
        found = self._usages.get(layer)
        if found is None:
            found = self._usages[layer] = _Usage()
        return found

    # ---- memory ----

    def _hold(self, x: Any, layer: str | None) -> None:
        """Count the memory of a primitive until it is freed."""
        if not hasattr(x, "shape"):
            return
        owner = _owner(x)
        key = id(owner)
        if key in self._held:
            return
        me = ref(self)

        def ended(_: Any) -> None:
            if (trace := me()) is not None:
                trace._release(key)

        try:
            noticed = ref(owner, ended)
        except TypeError:  # a type without weak references, such as NumPy's scalars
            return
        try:
            nbytes = prod(owner.shape) * self._inner.dtype(x).itemsize
        except Exception:  # an array of the host
            return
        self._held[key] = nbytes, layer, noticed
        self._bytes.add(nbytes)
        self._usage(layer).add(nbytes)

    def _release(self, key: int) -> None:
        with self._guard:
            nbytes, layer, _ = self._held.pop(key)
            self._bytes.add(-nbytes)
            if (usage := self._usages.get(layer)) is not None:
                usage.add(-nbytes)

    # ---- calls of modules ----

    def _begin_to_watch(self) -> None:
        with self._guard:
            if self._watch is None:
                self._watch = _Watch(self)
                WATCHERS.append(self._watch)
                finalize(self, WATCHERS.remove, self._watch)

    def _span(self, call: ModuleCall) -> None:
        """Record the span of a module call if operations of this backend ran in it."""
        end = time.perf_counter()
        if id(self) not in call.notes:
            return
        if call.outer is not None:
            call.outer.notes.add(id(self))
        args: dict[str, Any] = {"layer": call.layer, "type": call.name}
        if call.failed:
            args["failed"] = True
        name = call.path or call.name
        category = {"module": "module", "backward": "backward pass", "replay": "replay"}[call.kind]
        with self._guard:
            self._append(name, category, max(call.start, self._start), end, args)

    def _count_saved(self, saved: Iterable[tuple[int, Any]]) -> None:
        """Count the bytes saved at the start of a reverse pass."""
        first: dict[int, int] = {}
        for stamp, x in saved:
            if not hasattr(x, "shape"):
                continue
            while id(x) not in self._held and hasattr(x, "value"):  # a tensor of an outer level
                x = x.value
            key = id(_owner(x))
            first[key] = min(stamp, first.get(key, stamp))
        sums: dict[str, int] = {}
        with self._guard:
            for key, stamp in first.items():
                call = call_at(stamp)
                held = self._held.get(key)
                if held is not None and held[1] is not None and call is not None and call.layer is not None:
                    sums[call.layer] = sums.get(call.layer, 0) + held[0]
            for layer, nbytes in sums.items():
                usage = self._usage(layer)
                usage.saved = max(usage.saved, nbytes)


class _Watch(Watcher):
    """A trace's observer of module calls, which does not keep the trace alive."""

    def __init__(self, trace: Trace) -> None:
        self._trace = ref(trace)

    def ended(self, call: ModuleCall, result: Any) -> None:
        """Record the span of a call."""
        if (trace := self._trace()) is not None:
            trace._span(call)

    def reversing(self, saved: Callable[[], Iterable[tuple[int, Any]]]) -> None:
        """Count the saved bytes."""
        if (trace := self._trace()) is not None:
            trace._count_saved(saved())


def _owner(x: Any) -> Any:
    """The array that owns the memory of ``x``: views of array libraries refer to it as ``base``, of the same class."""
    while (base := getattr(x, "base", None)) is not None and type(base) is type(x):
        x = base
    return x
