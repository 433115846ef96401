"""``Mesh``: the axes over which tensors are cut, and the processes that hold the shards."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from backburn.backend import AnyBackend, load_backend
from backburn.backend.spec import parse
from backburn.base.errors import ArgumentError, SpecError
from backburn.base.threads import set_num_threads
from backburn.communicators import Communicator, launched, load_communicator
from backburn.communicators.agreement import check_agreement
from backburn.data import batches
from backburn.decorators.sharding.processes import check_mesh
from backburn.distributed.rows import Rows, SizedRows
from backburn.hints.arguments import explained
from backburn.tensor.core.options import flags, integer
from backburn.tensor.generators import default_generator

T = TypeVar("T")

#: The mesh axis over which batches are cut, if a mesh has it.
DATA = "dp"


class Mesh:
    """The axes of a mesh with their numbers of shards, the outermost first, and the processes that hold the shards.

    Made by :func:`mesh`. The number of processes is not part of the mesh: results do not depend on it, bit for bit.
    """

    def __init__(
        self,
        axes: Mapping[str, int],
        options: Mapping[str, Any],
        communicator: Communicator,
        threads: int | None = None,
    ) -> None:
        self.axes = dict(axes)
        self.options = dict(options)
        self.communicator = communicator
        #: The number of threads that compute a shard; None where the environment decides.
        self.threads = threads
        self._compared: set[str] = set()
        _check_processes(self.axes, communicator.size)

    def __repr__(self) -> str:
        words = [f"{name}={size}" for name, size in self.axes.items()]
        words += [f"{name}={value!r}" for name, value in self.options.items()]
        words += [] if self.threads is None else [f"threads={self.threads}"]
        where = f" on {self.processes} processes, this is rank {self.rank}" if self.processes > 1 else ""
        return f"mesh({', '.join(words)}){where}"

    @property
    def size(self) -> int:
        """The number of all shards."""
        return prod(self.axes.values())

    @property
    def rank(self) -> int:
        """The number of this process, from 0; the first one prints and writes files."""
        return self.communicator.rank

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self.communicator.size

    @property
    def data_axis(self) -> str:
        """The mesh axis over which batches are cut: ``dp``, or the outermost where there is none of that name."""
        return DATA if DATA in self.axes else next(iter(self.axes))

    def spec(self, spec: str = "autodiff(numpy)") -> str:
        """The expression ``spec`` with a level of shards for each axis, around the backend that is innermost.

        >>> mesh(dp=4, tp=2).spec("autodiff(capture(numpy))")
        'autodiff(capture(sharded(sharded(numpy, tp=2), dp=4)))'
        """
        parts = list(parse(spec).parts())
        if any(part.name == "sharded" for part in parts):
            raise ArgumentError(f"mesh: {spec!r} has shards already, and the mesh makes them: pass what is inside")
        start = parts[-1].start
        stop = _end_of(spec, start)
        words = dict(self.options)
        if self.processes > 1:
            words = {"comm": self.communicator.name, **words}
        further = "".join(f", {name}={str(x).lower() if isinstance(x, bool) else x}" for name, x in words.items())
        inner = spec[start:stop]
        for name, size in reversed(self.axes.items()):
            inner = f"sharded({inner}, {name}={size}{further})"
        return f"{spec[:start]}{inner}{spec[stop:]}"

    def backend(self, spec: str = "autodiff(numpy)") -> AnyBackend:
        """The backend of :meth:`spec`, on all processes.

        Raises :class:`CommunicationError` for processes whose backends compute by other libraries or kernels, or with
        other numbers of threads, on which the rounding depends; all of a mesh's processes call it.

            >>> mesh(dp=2).backend().spec
            'autodiff(sharded(numpy, dp=2))'
        """
        found = load_backend(self.spec(spec))
        if self.processes > 1 and found.spec not in self._compared:
            # the location of the libraries' files does not change results
            facts = {name: text for name, text in found.libraries.items() if not Path(text).is_absolute()}
            check_agreement(self.communicator.gather_objects, facts)
            self._compared.add(found.spec)
        return found

    def batches(
        self,
        *arrays: Any,
        batch_size: int,
        seed: int | None = None,
        epoch: int = 0,
        drop_last: bool = False,
        backend: AnyBackend | None = None,
    ) -> Rows:
        """:func:`backburn.data.batches`, of which every process reads the rows of its shards.

        The batches, and the order of their elements, are those of one process. Each array becomes a tensor on the
        default backend, or on ``backend``, that is cut along its first axis over :attr:`data_axis`, floats in the float
        type of the backend. Shards of the last, smaller batch are smaller, and may be empty.

            >>> import numpy as np
            >>> import backburn as bb
            >>> grid = mesh(dp=4)
            >>> for x, y in grid.batches(np.arange(6.0), np.arange(6), batch_size=5, backend=grid.backend()):
            ...     print(x.tolist(), y.shape, bb.distributed.placement(x))
            [0.0, 1.0, 2.0, 3.0, 4.0] (5,) {'dp': 0}
            [5.0] (1,) {'dp': 0}
        """
        loader = batches(*arrays, batch_size=batch_size, seed=seed, epoch=epoch, drop_last=drop_last)
        return self.rows(loader, backend=backend)

    def rows(self, data: Any, *, backend: AnyBackend | None = None, dtype: Any = None) -> Rows:
        """Batches of any loader, cut over :attr:`data_axis` as those of :meth:`batches` are.

        Every process goes through ``data`` and keeps its rows; those of :func:`backburn.data.batches` alone are not
        read by others. Arrays with another length than the first are whole. ``dtype`` is that of floats.
        """
        kind = SizedRows if hasattr(data, "__len__") else Rows
        return kind(data, self.data_axis, backend, dtype)

    def print(self, *values: object, **options: Any) -> None:
        """Print on the first process. What is printed is computed on all: ``mesh.print(loss.item())``."""
        if self.rank == 0:
            print(*values, **options)

    # ---- agreement ----

    def first(self, function: Callable[[], T]) -> T:
        """The result of ``function`` on the first process, which alone calls it; its error is raised on all.

        >>> mesh(dp=2).first(lambda: 3)
        3
        """
        if self.processes == 1:
            return function()
        result: Any = None
        error: BaseException | None = None
        if self.rank == 0:
            try:
                result = function()
            except Exception as raised:
                error = raised
        result, found = self.communicator.gather_objects((result, _sendable(error)))[0]
        if error is not None:
            raise error
        if found is not None:
            raise found
        return result

    def agreed(self, values: Sequence[bool]) -> list[bool]:
        """For each of ``values`` whether it is true on any process.

        >>> mesh(dp=2).agreed([False, True])
        [False, True]
        """
        if self.processes == 1:
            return list(values)
        return [any(column) for column in zip(*self.communicator.gather_objects(tuple(values)), strict=True)]

    def check_equal(self, what: str, values: Mapping[str, Any]) -> None:
        """Raise :class:`ArgumentError` on all processes unless all pass the same ``values``; says what differs.

        >>> mesh(dp=2).check_equal("the configuration", {"seed": 0})
        """
        if self.processes == 1:
            return
        every = self.communicator.gather_objects(dict(values))
        for rank, found in enumerate(every):
            wrong = [key for key in {**every[0], **found} if every[0].get(key) != found.get(key)]
            if wrong:
                key = wrong[0]
                raise ArgumentError(
                    f"mesh: {what} of rank {rank} is not that of rank 0: {key} is {found.get(key)!r:.200}, and "
                    f"{every[0].get(key)!r:.200} on rank 0. All processes run the same program with the same settings"
                )


@explained
def mesh(
    *,
    deterministic: bool = True,
    timeout: float | None = None,
    check: bool = False,
    on_fallback: str = "warn",
    threads: int | None = None,
    communicator: Communicator | None = None,
    **axes: int,
) -> Mesh:
    """A mesh with named axes, the outermost first, on the processes that this program was launched with.

    The size of an axis is its number of shards. A program that ``backburn launch``, ``mpiexec`` or ``srun`` started has
    the processes of MPI, any other one is alone. They share the shards equally, those of the outermost axis first.
    Batches are cut over ``dp``.

    - ``deterministic``: whether sums have a fixed order, so that results are bitwise equal on any number of processes;
      otherwise the engine adds in its own.
    - ``timeout``: the seconds that a collective may wait before the program is ended.
    - ``check``: whether every collective compares its operation, shapes and the line that called it on all processes.
    - ``on_fallback``: what an operation does that has no rule of sharding for its operands: ``"warn"``, ``"error"`` or
      ``"allow"``, as in :class:`backburn.decorators.sharding.Sharded`.
    - ``threads``: the number of threads that compute a shard, for :func:`backburn.set_num_threads` in every process;
      without it the environment decides. Products that the BLAS of NumPy computes may depend on it in their last bits.
    - ``communicator``: of the processes, instead of the one that was found.

    On several processes the versions and sources that they run are compared, and the state of :mod:`backburn.random` is
    that of the first. Raises :class:`ArgumentError` for no axis and for sizes that are not positive, for a number of
    processes that does not divide that of the shards, and for processes with other meshes;
    :class:`CommunicationError` for processes with other versions or sources.

        >>> mesh(dp=4, tp=2)
        mesh(dp=4, tp=2)
    """
    if not axes:
        raise ArgumentError("mesh: takes its axes with their numbers of shards: mesh(dp=4), mesh(dp=4, tp=2)")
    sizes = {name: integer("mesh", name, size, least=1) for name, size in axes.items()}
    flags("mesh", deterministic=deterministic, check=check)
    if threads is not None:
        set_num_threads(integer("mesh", "threads", threads, least=1))
    options: dict[str, Any] = {}
    if on_fallback != "warn":
        options["on_fallback"] = on_fallback
    given: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    given |= {"check": True} if check else {}
    found = communicator if communicator is not None else _communicator(given)
    if found.size > 1:
        options |= given if deterministic else {"deterministic": False, **given}
    made = Mesh(sizes, options, found, threads)
    if made.processes > 1:
        made.check_equal("the mesh", {"axes": [*sizes.items()], **options, "threads": threads})
        default_generator().set_state(made.first(default_generator().state))
    return made


def is_launched() -> bool:
    """Whether a launcher of MPI programs started this process and others."""
    found = launched()
    return found is not None and found[1] > 1


def _communicator(options: Mapping[str, Any]) -> Communicator:
    """The processes of the launcher that started this program, else this one alone."""
    return load_communicator("mpi", **options) if is_launched() else load_communicator("local")


def _check_processes(axes: Mapping[str, int], processes: int) -> None:
    """Raise :class:`ArgumentError` for processes that cannot share the shards of a mesh equally."""
    try:
        check_mesh(dict(axes), processes)
    except SpecError as error:
        raise ArgumentError(str(error).replace("sharded: ", "mesh: ", 1)) from None


def _end_of(text: str, start: int) -> int:
    """The end of the expression that begins at ``start`` of a text that can be read."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] == "(":
            depth += 1
        elif text[place] == ")" or (text[place] == "," and depth == 0):
            if depth == 0:
                return place
            depth -= 1
    return len(text)


def _sendable(error: BaseException | None) -> BaseException | None:
    """An error as other processes can raise it."""
    if error is None:
        return None
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # raised by a library, with unknown arguments
        return RuntimeError(f"{type(error).__name__}: {error}")
