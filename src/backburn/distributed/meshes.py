"""``Mesh``: the axes over which tensors are split, and the processes that hold the shards."""

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

#: The mesh axis over which batches are split, if a mesh has it.
DATA = "dp"


class Mesh:
    """The axes of a mesh with their numbers of shards, the outermost first, and the processes that hold the shards.

    Created by :func:`mesh`. The number of processes is not part of the mesh: results are bitwise identical for any.
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
        #: The number of threads that compute a shard; None if the environment decides.
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
        """The total number of shards."""
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
        """The mesh axis over which batches are split: ``dp``, or the outermost if the mesh has no ``dp``."""
        return DATA if DATA in self.axes else next(iter(self.axes))

    def spec(self, spec: str = "autodiff(numpy)") -> str:
        """The expression ``spec`` with a sharded level per axis around the innermost backend.

        >>> mesh(dp=4, tp=2).spec("autodiff(capture(numpy))")
        'autodiff(capture(sharded(sharded(numpy, tp=2), dp=4)))'
        """
        parts = list(parse(spec).parts())
        if any(part.name == "sharded" for part in parts):
            raise ArgumentError(f"mesh: {spec!r} has shards already, and the mesh adds its own: pass what is inside")
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

        All processes of the mesh must call it. Raises :class:`CommunicationError` if their backends use different
        libraries, kernels or numbers of threads, on which rounding depends.

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
        """:func:`backburn.data.batches`, where every process reads only the rows of its shards.

        Batches and their order of elements are those of one process. Each array becomes a tensor on the default
        backend, or on ``backend``, split along its first axis over :attr:`data_axis`; floats get the backend's float
        type. Shards of the last, smaller batch are smaller, and may be empty.

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
        """Batches of any loader, split over :attr:`data_axis` like those of :meth:`batches`.

        Every process iterates over ``data`` and keeps its rows; from :func:`backburn.data.batches` it reads only those.
        Arrays whose length differs from the first one's are replicated. ``dtype`` is that of floats.
        """
        kind = SizedRows if hasattr(data, "__len__") else Rows
        return kind(data, self.data_axis, backend, dtype)

    def print(self, *values: object, **options: Any) -> None:
        """Print on the first process; all processes compute the arguments: ``mesh.print(loss.item())``."""
        if self.rank == 0:
            print(*values, **options)

    # ---- agreement ----

    def first(self, function: Callable[[], T]) -> T:
        """The result of ``function``, which only the first process calls; its error is raised on all.

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
        """For each of ``values``, whether it is true on any process.

        >>> mesh(dp=2).agreed([False, True])
        [False, True]
        """
        if self.processes == 1:
            return list(values)
        return [any(column) for column in zip(*self.communicator.gather_objects(tuple(values)), strict=True)]

    def check_equal(self, what: str, values: Mapping[str, Any]) -> None:
        """Raise :class:`ArgumentError` on all processes, with the difference, unless all pass the same ``values``.

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

    The size of an axis is its number of shards. A program started by ``backburn launch``, ``mpiexec`` or ``srun`` has
    the processes of MPI, any other program one process. Processes share the shards equally, those of the outermost axis
    first. Batches are split over ``dp``.

    - ``deterministic``: whether sums have a fixed order, so that results are bitwise identical on any number of
      processes; otherwise the engine chooses the order.
    - ``timeout``: the seconds that a collective may wait before the program is ended.
    - ``check``: whether every collective compares its operation, shapes and calling line on all processes.
    - ``on_fallback``: what happens if an operation has no sharding rule for its operands: ``"warn"``, ``"error"`` or
      ``"allow"``, as in :class:`backburn.decorators.sharding.Sharded`.
    - ``threads``: the number of threads that compute a shard, for :func:`backburn.set_num_threads` in every process;
      by default the environment decides. The last bits of products by NumPy's BLAS may depend on it.
    - ``communicator``: used instead of the one that is found.

    With several processes, their versions and sources are compared, and the state of :mod:`backburn.random` is that of
    the first. Raises :class:`ArgumentError` for no axis, for sizes that are not positive, for a number of processes
    that does not divide the number of shards, and if the processes' meshes differ; :class:`CommunicationError` if their
    versions or sources differ.

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
    """The end of the expression that begins at ``start`` of a valid text."""
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
    """An error in a form that other processes can raise."""
    if error is None:
        return None
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # a library's error that cannot be pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
