"""``Average``: the mean of a model's parameters over its training, exponential or with equal weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import index
from typing import Any, TypeVar

from backburn.backend.host_numbers import RECORDING_STEP
from backburn.base.contexts import ACTIVE
from backburn.base.errors import ArgumentError, DTypeError, GraphError, ShapeError, hint_for
from backburn.base.mutable_trees import Leaf, MutableTree, TreeNode
from backburn.optim.fixed_attributes import FixedAttributes
from backburn.optim.gradients import is_float_tensor, place_of_steps
from backburn.tensor.classes import FloatTensor
from backburn.tensor.core.copying import copy_if_overwritten
from backburn.tensor.core.dispatch import cast, upcast_half, upcast_half_dtype
from backburn.tensor.core.host import asarray
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import bounded, flags
from backburn.tensor.core.wrapping import is_tensor

M = TypeVar("M")


class Average(FixedAttributes):
    """The running mean of a model's parameters, for evaluation or as a target that follows slowly.

    Each :meth:`update` moves the mean towards the parameters: ``mean += (1 - decay) * (parameter - mean)``, which is
    the exponential moving average (EMA; Polyak averaging). The first one copies the parameters. With ``decay=None`` all
    updates have equal weights (stochastic weight averaging, SWA; Izmailov et al., 2018). With ``warmup``, the decay of
    update ``n`` is at most ``(1 + n) / (10 + n)``, so that the first parameters are soon forgotten, as in TensorFlow's
    ``ExponentialMovingAverage`` with ``num_updates``.

    A model is a module or any other tree of tensors that can be changed in place. Means are kept by the parameters'
    paths, whatever the model's mode; those of 16-bit parameters in float32. Buffers of modules, such as the running
    statistics of ``BatchNorm``, keep the model's values, or with ``use_buffers`` are averaged too if they are floats;
    integers, such as counters, never are. An average in the state of a captured step is updated by each replay.

    Raises :class:`ArgumentError` for a decay outside of 0 to 1, and for ``warmup`` without a decay.

        >>> import backburn as bb
        >>> model, average = bb.nn.Linear(1, 1, bias=False), Average(decay=0.5)
        >>> for value in (1.0, 2.0, 4.0):
        ...     model.load_state_dict({"weight": bb.asarray([[value]])})
        ...     average.update(model)
        >>> with average.applied(model):
        ...     print(model.weight.item())
        2.75
        >>> model.weight.item()
        4.0
    """

    def __init__(self, decay: float | None = 0.999, *, warmup: bool = False, use_buffers: bool = False) -> None:
        self.decay = decay
        self.warmup = warmup
        self.use_buffers = use_buffers
        #: The number of updates.
        self.updates = 0
        self._means: dict[str, FloatTensor] = {}
        if decay is None and warmup:
            raise ArgumentError("Average: warmup limits the decay, but decay=None means equal weights, without decay")

    def __repr__(self) -> str:
        return f"Average(decay={self.decay!r}, warmup={self.warmup!r}, use_buffers={self.use_buffers!r})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option to a valid value."""
        if name == "decay" and value is not None:
            value = bounded("Average", name, value, least=0, most=1)
        elif name in ("warmup", "use_buffers"):
            flags("Average", **{name: value})
        super().__setattr__(name, value)

    def update(self, model: Any) -> None:
        """Move the mean towards the parameters of ``model``; call it after each step, or once per epoch.

        Raises :class:`ArgumentError` for a model with other paths than before, :class:`ShapeError` and
        :class:`DTypeError` for parameters of other shapes and dtypes, and :class:`GraphError` inside a transform of the
        model; then nothing is changed.
        """
        leaves, recording = self._leaves("update", model), RECORDING_STEP.get()
        active = ACTIVE.get()
        if active is not None and any(leaf.value.backend is active for leaf in leaves):
            raise GraphError(
                "update: the model is an argument of a transform, whose derivatives would end at the average: update "
                "it outside"
            )
        if recording is None:
            weight = self._weight(self.updates + 1)
        else:
            options, paths = self._options(), {*self._means}
            recording.assume(lambda: self._options() == options and self._means.keys() == paths)
            number = recording.number(self._count, (lambda: self.updates, self._put_updates))
            (weight,) = recording.derived(lambda n: (self._weight(n),), number)
        weights: dict[tuple[int, str], Any] = {}
        means = {}
        for leaf in leaves:
            if not self._means:
                means[leaf.path] = copy_if_overwritten(_widened(leaf.value))
                continue
            x, mean = _widened(leaf.value), self._means[leaf.path]
            k: Any = x._backend
            if mean._primitive is x._primitive:  # always true of frozen parameters
                means[leaf.path] = mean
                continue
            if mean._backend != k:
                mean = mean.to(k)
            key = id(k), x._dtype.name
            if key not in weights:  # a 0-d tensor: a number would be compiled into the formula, again for each value
                weights[key] = k.mul(k.full((), 1.0, x._dtype), weight)
            moved = k.fuse(_moved, mean._primitive, x._primitive, weights[key])
            means[leaf.path] = x.__class__(moved, k, x._dtype)
        self._means = means
        if recording is None:
            self._count()

    def _count(self) -> int:
        """Count an update; returns the number of updates."""
        self.updates += 1
        return self.updates

    def _put_updates(self, updates: int) -> None:
        self.updates = updates

    def copy_to(self, model: M) -> M:
        """Replace the parameters of ``model`` by their mean, and return the model.

        The new ones require gradients as the old ones did. Raises :class:`ArgumentError` before the first update, and
        the errors of :meth:`update` for a model that does not fit.
        """
        for leaf, mean in self._pairs("copy_to", model):
            leaf.put(mean)
        return model

    @contextmanager
    def applied(self, model: M) -> Iterator[M]:
        """A context in which ``model`` has the mean; its parameters are restored at the end, also after an error.

        Raises the errors of :meth:`copy_to`.
        """
        pairs = self._pairs("applied", model)
        own = [leaf.value for leaf, _ in pairs]
        try:
            for leaf, mean in pairs:
                leaf.put(mean)
            yield model
        finally:
            for (leaf, _), x in zip(pairs, own, strict=True):
                leaf.put(x)

    def _weight(self, updates: int) -> float:
        """The weight of the parameters in an update, given its number, counted from 1."""
        if self.decay is None:
            return 1.0 / updates
        n = updates - 1
        return 1.0 - (min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay)

    def _options(self) -> tuple[Any, ...]:
        return self.decay, self.warmup, self.use_buffers

    def _leaves(self, name: str, model: Any) -> list[Leaf]:
        """The tensors of ``model`` that are averaged, checked against the mean if there is one."""
        tree = MutableTree(model, is_float_tensor)
        chosen = {id(x) for node in tree.nodes if _is_outermost(node) for x in self._tensors_of(node.value)}
        leaves = [leaf for leaf in tree.leaves if id(leaf.value) in chosen or not _is_in_module(leaf.parents[0][0])]
        if not leaves:
            raise ArgumentError(f"{name}: the {type(model).__name__} has no parameters")
        if not self._means:
            return leaves
        paths = {leaf.path for leaf in leaves}
        if wrong := sorted(paths ^ self._means.keys()):
            is_models = wrong[0] in paths
            has = "is in the model but not in the average" if is_models else "is in the average but not in the model"
            others = self._means.keys() - paths if is_models else paths - self._means.keys()
            hint = hint_for(wrong[0], others) if others else ""
            raise ArgumentError(f"{name}: an average belongs to one model, and {wrong[0]!r} {has}. {hint}".rstrip())
        for leaf in leaves:
            mean, x = self._means[leaf.path], leaf.value
            if mean.shape != x.shape or mean.dtype is not upcast_half_dtype(x.dtype):
                raise (ShapeError if mean.shape != x.shape else DTypeError)(
                    f"{name}: the mean of {leaf.path} is {describe((mean,))}, and the parameter {describe((x,))}: an "
                    f"average belongs to one model"
                )
        return leaves

    def _tensors_of(self, module: Any) -> list[Any]:
        """The tensors of a module to average; buffers may include other dtypes than floats."""
        found = [x for _, x in module.named_parameters()]
        return found + [x for _, x in module.named_buffers()] if self.use_buffers else found

    def _pairs(self, name: str, model: Any) -> list[tuple[Leaf, FloatTensor]]:
        """The averaged tensors of ``model``, each with its replacement."""
        if not self._means:
            raise ArgumentError(f"{name}: there is no mean yet: call update(model) after each step")
        return [(leaf, _like(self._means[leaf.path], leaf.value)) for leaf in self._leaves(name, model)]

    # ---- state ----

    def state_dict(self) -> dict[str, FloatTensor | int]:
        """The state for saving: each mean under ``"<path>.mean"``, and the number of ``"updates"``."""
        means = {}
        for path, x in self._means.items():
            kept = copy_if_overwritten(x)  # a separate tensor: a captured step consumes those of its state
            means[f"{path}.mean"] = kept.__class__(kept._primitive, kept._backend, kept._dtype)
        return {"updates": self.updates, **means}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state_dict`, whose values may also be NumPy arrays.

        Raises :class:`ArgumentError` for unknown or missing names, and :class:`DTypeError` for values of another type;
        then nothing is changed.
        """
        given: object = state
        if not isinstance(given, Mapping):
            raise ArgumentError(f"load_state_dict: takes what state_dict() gives, not {given!r:.80}")
        if wrong := [name for name in map(str, state) if name != "updates" and not name.endswith(".mean")]:
            raise ArgumentError(f"load_state_dict: unexpected in the state of an Average: {', '.join(wrong)}")
        if "updates" not in state:
            raise ArgumentError("load_state_dict: missing in the state of an Average: updates")
        means = {}
        for name, x in state.items():
            if name == "updates":
                continue
            tensor = x if is_tensor(x) or not hasattr(x, "__array__") else asarray(x)
            if not is_float_tensor(tensor):
                raise DTypeError(f"load_state_dict: {name} is a float tensor, not {type(x).__name__}")
            means[name.removesuffix(".mean")] = lowered(tensor)
        try:
            updates = index(state["updates"])
        except TypeError:
            raise DTypeError(f"load_state_dict: updates is an integer, not {state['updates']!r}") from None
        if not -(2**63) < updates < 2**63:
            raise ArgumentError("load_state_dict: updates has more than 64 bits")
        if updates < 0 or (updates == 0) != (not means):
            raise ArgumentError(f"load_state_dict: {updates} updates do not give {len(means)} means")
        self.updates, self._means = updates, means

    def state_tensors(self) -> dict[str, FloatTensor]:
        """The means by path, for a captured step."""
        return dict(self._means)

    def held_tensors(self) -> list[FloatTensor]:
        """The means, in the same order."""
        return [*self._means.values()]

    def load_tensors(self, tensors: Mapping[str, Any], owned: bool) -> None:
        """Replace the tensors of :meth:`state_tensors`."""
        self._means = dict(tensors)


def _is_module(value: Any) -> bool:
    return hasattr(value, "named_parameters")


def _is_in_module(node: TreeNode | None) -> bool:
    """Whether a node is a module or below one."""
    while node is not None and not _is_module(node.value):
        node = node.parent
    return node is not None


def _is_outermost(node: TreeNode) -> bool:
    """Whether a node is a module and below none."""
    return _is_module(node.value) and not _is_in_module(node.parent)


def _moved(k: Any, mean: Any, x: Any, weight: Any) -> Any:
    """The mean, moved towards ``x``."""
    return k.add(mean, k.mul(k.sub(x, mean), weight))


def lowered(x: FloatTensor) -> FloatTensor:
    """``x`` without history, below its level of autodiff if it has one."""
    home: Any = x._backend
    k: Any = place_of_steps(home)
    return x if k is home else x.__class__(home.inner(x._primitive), k, x._dtype)


def _widened(x: FloatTensor) -> FloatTensor:
    """A parameter in the form that is averaged: below its level of autodiff, in at least 32 bits."""
    return upcast_half(lowered(x))


def _like(mean: FloatTensor, x: FloatTensor) -> FloatTensor:
    """A mean as a parameter like ``x``: of its dtype, on its backend, a leaf if it is one."""
    home: Any = x._backend
    k: Any = place_of_steps(home)
    mean = mean if mean._backend == k else mean.to(k)
    primitive = copy_if_overwritten(cast(mean, x._dtype))._primitive
    if home is not k:
        primitive = home.new_leaf(primitive) if x.is_require_grad else home.from_inner(primitive)
    return x.__class__(primitive, home, x._dtype)
