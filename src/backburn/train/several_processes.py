"""A run on a mesh: the rows of its batches, the placement of its tensors, and what several processes agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backburn.backend.placing import levels_of
from backburn.base.errors import ArgumentError
from backburn.base.mutable_trees import MutableTree
from backburn.data.loader import Batches
from backburn.distributed import Cutting, Mesh, place, placement
from backburn.distributed.rows import Rows
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor
from backburn.train.batches import Place
from backburn.train.signals import Terminated


class SeveralProcesses:
    """Decisions that the processes of a run make together; all of them call the same methods in the same order."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        #: Why this process wants to end the run: a signal or a callback, at any moment.
        self.reason: str | None = None

    def agree(self, is_due: bool) -> tuple[bool, str | None]:
        """Whether a save is due, by the clock of the first process, and why any process wants to end the run."""
        found = self._mesh.communicator.gather_objects((is_due, self.reason))
        return found[0][0], next((reason for _, reason in found if reason is not None), None)

    def interrupt(self, own: KeyboardInterrupt | None) -> KeyboardInterrupt | None:
        """The error to raise on all processes after a signal that any of them has got."""
        is_terminated, is_interrupted = self._mesh.agreed([isinstance(own, Terminated), own is not None])
        return Terminated() if is_terminated else KeyboardInterrupt() if is_interrupted else None


def cut_batches(mesh: Mesh, at: Place) -> None:
    """Split batches over the data axis of a mesh. Raises :class:`ArgumentError` for a model on another backend."""
    own = {level.mesh_axis: level.size for level in levels_of(at.backend)}
    if own != mesh.axes:
        raise ArgumentError(
            f"Trainer: the model is on {at.backend.spec}, which is not a backend of {mesh!r}: create it in a "
            f"block, with bb.use_backend(mesh.backend()):"
        )
    at.cutting = Cutting(at.backend, mesh.data_axis, at.dtype)


def own_rows(mesh: Mesh, at: Place, data: Any) -> Any:
    """Data of :func:`backburn.data.batches` as the rows of this process; other data are split batch by batch."""
    if type(data) is Batches:
        return mesh.rows(data, backend=at.backend, dtype=at.dtype)
    if isinstance(data, Rows):
        data.backend, data.dtype = at.backend, at.dtype
    return data


def joined(mesh: Mesh, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with the tensors among them replicated, so that one process can read them alone."""
    whole = dict.fromkeys(mesh.axes)
    return {name: place(x, whole) if is_tensor(x) else x for name, x in values.items()}


def placements(model: Any, optimizer: Any, at: Place) -> dict[str, Any]:
    """The placements of the tensors of the optimizer's and the average's states, by name, on a backend with shards."""
    if not levels_of(at.backend):
        return {}
    optimizer.begin(model, lambda _, x: x)
    found = {name: placement(x) for name, x in optimizer.state_tensors().items()}
    return found | {f"{x.path}.mean": placement(x.value) for x in MutableTree(model, is_tensor).leaves}


def placed(state: Mapping[str, Any], at: Place, where: Mapping[str, Any]) -> dict[str, Any]:
    """A state with its arrays as tensors on the model's backend, placed as ``where`` says by name."""

    def here(name: str, x: Any) -> Any:
        if not hasattr(x, "shape"):
            return x
        made = asarray(x, backend=at.backend)
        return place(made, where[name]) if name in where else made

    return {name: here(name, x) for name, x in state.items()}
