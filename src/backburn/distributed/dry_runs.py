"""``dry_run``: the costs of a training step on one process of any number, without launching them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from backburn.autodiff import Autodiff
from backburn.backend import AnyBackend, load_backend
from backburn.backend.spec import parse
from backburn.backend.wrapper import Wrapper
from backburn.base.errors import ArgumentError
from backburn.base.module_calls import WATCHERS, Watcher
from backburn.communicators.count import FAR, NEAR, Count, Link
from backburn.decorators.sharding import Sharded
from backburn.decorators.sharding.shards import Shards
from backburn.distributed.meshes import Mesh
from backburn.nn import Module
from backburn.ops.rules.work import multiply_adds_of

#: Warm-up steps: the first one creates the optimizer's state.
FIRST = 2
#: Timed steps, of which the median counts.
TIMED = 7


@dataclass(frozen=True)
class DryRun:
    """Costs of a step on one process: bytes of memory, bytes sent, and seconds.

    ``parameters``, ``gradients`` (of parameters that require one) and ``state`` are the bytes that the process holds;
    ``state`` includes the optimizer's state and all else that persists between steps. ``activations`` are the bytes
    that the forward pass holds when the reverse pass begins, and ``peak`` is the most memory in use at once, including
    data. ``sent`` are the bytes that leave the process, ``calls`` counts the collectives by kind, ``multiply_adds``
    those of products. ``compute`` and ``communication`` are seconds; ``compute`` is None without a rate or measurement.
    """

    processes: int
    parameters: int
    gradients: int
    state: int
    activations: int
    peak: int
    sent: int
    calls: Mapping[str, int]
    multiply_adds: int
    compute: float | None
    communication: float

    @property
    def seconds(self) -> float | None:
        """The predicted time of a step, assuming that communication and computation do not overlap."""
        return None if self.compute is None else self.compute + self.communication

    def __str__(self) -> str:
        memory = ("parameters", "gradients", "state", "activations", "peak")
        lines = [f"one of {self.processes:,} processes, for each step"]
        lines += [f"{name:<14}{getattr(self, name) / 1e6:>12,.2f} MB" for name in memory]
        lines.append(f"{'sent':<14}{self.sent / 1e6:>12,.2f} MB in {sum(self.calls.values())} collectives")
        lines.append(f"{'multiply-adds':<14}{self.multiply_adds / 1e9:>12,.3f} G")
        if self.compute is not None:
            lines.append(f"{'compute':<14}{self.compute * 1e3:>12,.2f} ms")
        lines.append(f"{'communication':<14}{self.communication * 1e3:>12,.2f} ms")
        if self.seconds is not None:
            lines.append(f"{'time':<14}{self.seconds * 1e3:>12,.2f} ms")
        return "\n".join(lines)


def dry_run(
    program: Callable[[Mesh], tuple[Module | Iterable[Any], Callable[[], Any]]],
    *,
    processes: int | None = None,
    rank: int = 0,
    per_node: int | None = None,
    near: Link = NEAR,
    far: Link = FAR,
    rate: float | None = None,
    measure: bool = False,
    cores: int | None = None,
    on_fallback: str = "warn",
    **axes: int,
) -> DryRun:
    """Simulate a training step on process ``rank`` of ``processes``, by default one process per shard of the mesh.

    ``program(mesh)`` builds a model (or tensors) on ``mesh.backend()``, and returns it with a function that runs one
    training step. It runs on the backend without values, over the communicator ``count``: nothing is computed or sent,
    and thousands of processes take no more memory than one. ``per_node`` processes share a node, all of them by
    default; ``near`` and ``far`` are the links within nodes and between them.

    The compute time follows from ``rate``, in multiply-adds per second, or, with ``measure``, from running this
    process's step here, on the backend that the program asks for, with zeros received from the others. With ``cores``
    per node, more processes than cores share them. Raises :class:`ArgumentError` for sizes that are not positive, as
    :func:`mesh` does, and for both ``rate`` and ``measure``.

        >>> import backburn as bb
        >>> from backburn import distributed, nn, optim
        >>> def program(mesh):
        ...     with bb.use_backend(mesh.backend()):
        ...         model, optimizer = nn.Linear(784, 1024, bias=False), optim.SGD(0.1)
        ...     def step():
        ...         with bb.use_backend(mesh.backend()):
        ...             x = distributed.place(bb.zeros((64 * 128, 784)), {"dp": 0})
        ...             optimizer.step(model, (model(x) ** 2).mean().backward())
        ...     return model, step
        >>> found = distributed.dry_run(program, dp=128, per_node=8, rate=1e12)
        >>> found.parameters == 784 * 1024 * 4, round(found.sent / found.gradients, 2)
        (True, 1.98)
    """
    if rate is not None and (measure or not rate > 0):
        raise ArgumentError("dry_run: rate is a positive number of multiply-adds per second, instead of measure")
    if not axes:
        raise ArgumentError("dry_run: takes the axes of a mesh with their numbers of shards: dry_run(program, dp=4)")
    count = prod(axes.values()) if processes is None else processes
    comm = Count(count, rank, per_node=per_node, near=near, far=far)
    found = _followed(program, comm, axes, on_fallback)
    shared = 1.0 if cores is None else max(1.0, min(comm.per_node, count) / cores)
    compute = None if rate is None else found["multiply_adds"] / rate
    if measure:
        compute = _measured(program, Count(count, rank, per_node=per_node), axes, on_fallback)
    return DryRun(processes=count, compute=None if compute is None else compute * shared, **found)


class _DryMesh(Mesh):
    """A mesh whose backends shard over a communicator that sends nothing."""

    def __init__(
        self, axes: Mapping[str, int], on_fallback: str, comm: Count, inside: Callable[[str], AnyBackend]
    ) -> None:
        super().__init__(axes, {"on_fallback": on_fallback}, comm)
        self._inside = inside
        self._made: dict[str, AnyBackend] = {}

    def backend(self, spec: str = "autodiff(numpy)") -> AnyBackend:
        """The levels around the innermost backend of ``spec`` or its replacement; ``autodiff`` if ``spec`` has it."""
        if spec not in self._made:
            names = [part.name for part in parse(spec).parts()]
            start = list(parse(spec).parts())[-1].start
            k: Any = self._inside(spec[start:].rstrip(")") if spec[start:].count("(") == 0 else names[-1])
            for name, size in reversed(self.axes.items()):
                k = Sharded(k, comm=self.communicator, **{**self.options, name: size})
            self._made[spec] = Autodiff(k) if "autodiff" in names else k
        return self._made[spec]


class _Work(Wrapper):
    """Counts the multiply-adds of products."""

    name = "work"

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self.multiply_adds = 0

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        result = super().call(operation, *operands, **attributes)
        self.multiply_adds += multiply_adds_of(operation, operands, attributes, result)
        return result


class _AtReverse(Watcher):
    """Records the most memory in use when a reverse pass begins."""

    def __init__(self, used: Callable[[], int]) -> None:
        self._used = used
        self.most = 0

    def reversing(self, saved: Callable[[], Iterable[tuple[int, Any]]]) -> None:
        self.most = max(self.most, self._used())


@contextmanager
def _watching(watcher: Watcher) -> Iterator[None]:
    WATCHERS.append(watcher)
    try:
        yield
    finally:
        WATCHERS.remove(watcher)


def _followed(program: Any, comm: Count, axes: Mapping[str, int], on_fallback: str) -> dict[str, Any]:
    """The results of a dry run, except for the compute time."""
    null = load_backend("null")
    work = _Work(null)

    def used() -> int:
        return null.memory_stats()["used"]

    start = used()
    mesh = _DryMesh(axes, on_fallback, comm, lambda spec: work)
    made, step = program(mesh)
    for _ in range(FIRST):
        step()
    resident = used()
    comm.counted.clear()
    work.multiply_adds = 0
    null.memory_cleanup()
    at_reverse = _AtReverse(used)
    with _watching(at_reverse):
        step()
    tensors = _tensors(made)
    parameters = sum(_bytes(x.primitive) for x in tensors)
    return {
        "parameters": parameters,
        "gradients": sum(_bytes(x.primitive) for x in tensors if x.is_require_grad),
        "state": resident - start - parameters,
        "activations": max(0, at_reverse.most - resident),
        "peak": null.memory_stats()["peak"] - start,
        "sent": comm.counted.bytes,
        "calls": dict(comm.counted.calls),
        "multiply_adds": work.multiply_adds,
        "communication": comm.counted.seconds,
    }


def _measured(program: Any, comm: Count, axes: Mapping[str, int], on_fallback: str) -> float:
    """The seconds of a step of this process, on the backend that the program asks for."""
    _, step = program(_DryMesh(axes, on_fallback, comm, load_backend))
    for _ in range(FIRST):
        step()
    seconds = []
    for _ in range(TIMED):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _tensors(made: Any) -> Sequence[Any]:
    """The tensors of a model, or those given."""
    return [leaf.value for leaf in made._parameters()] if isinstance(made, Module) else list(made)


def _bytes(x: Any) -> int:
    """The bytes of a primitive that this process holds."""
    if x.__class__ is Shards:
        return sum(map(_bytes, x.parts))
    inner = getattr(x, "value", None)
    return int(x.nbytes) if inner is None else _bytes(inner)
