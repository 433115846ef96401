"""Parameter groups: one model with several optimizers, each for the parameters whose paths match a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from backburn.backend.host_numbers import RECORDING_STEP
from backburn.base.errors import ArgumentError, hint_for
from backburn.base.mutable_trees import Leaf, MutableTree, path_matches
from backburn.hints import add_hints
from backburn.hints.arguments import explained
from backburn.hints.general import OPTIMIZERS
from backburn.optim.fixed_attributes import FixedAttributes
from backburn.optim.gradients import is_float_tensor, named_by_leaf
from backburn.optim.optimizer import Optimizer
from backburn.tensor.classes import FloatTensor

T = TypeVar("T")


class Groups(FixedAttributes):
    """Optimizers by patterns of paths: a parameter belongs to the first pattern that its path matches.

    A pattern contains shell wildcards, or is the path of a part of the model, such as ``"layers.0"``, and then matches
    everything in it. Raises :class:`ArgumentError` for anything but an optimizer; and at a step for a pattern that
    matches no parameter, and for a parameter with a gradient that matches no pattern (``"*"`` matches everything).

        >>> import backburn as bb
        >>> from backburn.optim import SGD
        >>> model = bb.nn.Linear(2, 1)
        >>> optimizer = Groups({"bias": SGD(0.0), "*": SGD(0.1, weight_decay=0.01)})
        >>> bias, weight = model.bias, model.weight
        >>> optimizer.step(model, model(bb.ones((1, 2))).sum().backward())
        >>> bool((model.bias == bias).all()), bool((model.weight == weight).any())
        (True, False)
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Optimizers by pattern; the first that matches is used."""
        given: object = optimizers
        if not isinstance(given, Mapping) or not given or not all(isinstance(x, Optimizer) for x in given.values()):
            raise ArgumentError('Groups: takes optimizers by pattern, such as {"*.bias": SGD(0.1), "*": Adam()}')
        self.optimizers = dict(optimizers)
        self._tree: MutableTree | None = None
        self._patterns: list[str] = []
        self._pattern_of_path: dict[str, str | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling and copying, without the cached walk over the model."""
        return {**vars(self), "_tree": None}

    def __repr__(self) -> str:
        return f"Groups({self.optimizers})"

    @property
    def steps(self) -> int:
        """The number of steps taken: the largest of the optimizers' numbers."""
        return max((optimizer.steps for optimizer in self.optimizers.values()), default=0)

    @explained
    def step(self, model: Any, gradients: Any) -> None:
        """Let each optimizer update its parameters; see :meth:`Optimizer.step`."""
        tree = self._walked(model)
        named = named_by_leaf(model, tree.leaves, gradients)
        parts: dict[str, dict[str, Any]] = {pattern: {} for pattern in self.optimizers}
        for path, gradient in named.items():
            pattern = self._pattern_of_path[path]
            if pattern is None:
                known = ", ".join(map(repr, parts))
                raise ArgumentError(f'step: no pattern matches the parameter {path!r}: {known}. "*" matches all')
            parts[pattern][path] = gradient
        if not named:
            next(iter(self.optimizers.values())).step(model, gradients)  # raises the error
        for pattern, part in parts.items():
            if part:
                self.optimizers[pattern]._look_at(tree)
                self.optimizers[pattern].step(model, part)
        if RECORDING_STEP.get() is not None:
            self._tree = None  # its tensors belong to the recording alone

    def begin(self, model: Any, change: Callable[[str, FloatTensor], FloatTensor]) -> None:
        """Let each optimizer initialize the state of its parameters; see :meth:`Optimizer.begin`."""
        tree = self._walked(model)
        for pattern, optimizer in self.optimizers.items():
            own = [leaf for leaf in tree.leaves if self._pattern_of_path[leaf.path] == pattern]
            optimizer._look_at(tree)
            optimizer._begin([leaf for leaf in own if leaf.value.is_require_grad], change)

    def _walked(self, model: Any) -> MutableTree:
        """The leaves of ``model`` and their patterns, searched again only after a change."""
        tree, patterns = self._tree, list(self.optimizers)
        if tree is None or tree.root is not model or patterns != self._patterns or not tree.unchanged():
            tree = MutableTree(model, is_float_tensor)
            every = [path for leaf in tree.leaves for path in leaf.paths]
            for pattern in patterns:
                if not any(path_matches(path, pattern) for path in every):
                    raise ArgumentError(f"step: no parameter's path matches {pattern!r}. {hint_for(pattern, every)}")
            self._pattern_of_path = {leaf.path: self._pattern_of(leaf) for leaf in tree.leaves}
            self._tree, self._patterns = tree, patterns
        return tree

    def _pattern_of(self, leaf: Leaf) -> str | None:
        return next((p for p in self.optimizers if any(path_matches(path, p) for path in leaf.paths)), None)

    def state_dict(self) -> dict[str, FloatTensor | int]:
        """The state for saving: that of each optimizer, prefixed with its number."""
        return _joined(optimizer.state_dict() for optimizer in self.optimizers.values())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state_dict`. Raises the errors of :meth:`Optimizer.load_state_dict`."""
        parts = _parted(state, len(self.optimizers), "load_state_dict")
        for optimizer, part in zip(self.optimizers.values(), parts, strict=True):
            optimizer.load_state_dict(part)

    def state_tensors(self) -> dict[str, FloatTensor]:
        """The tensors of the state, prefixed with the number of the optimizer."""
        return _joined(optimizer.state_tensors() for optimizer in self.optimizers.values())

    def held_tensors(self) -> list[FloatTensor]:
        """The tensors themselves, for a captured step."""
        return [x for optimizer in self.optimizers.values() for x in optimizer.held_tensors()]

    def load_tensors(self, tensors: Mapping[str, Any], owned: bool) -> None:
        """Replace the tensors of :meth:`state_tensors`."""
        parts = _parted(tensors, len(self.optimizers), "load_tensors")
        for optimizer, part in zip(self.optimizers.values(), parts, strict=True):
            optimizer.load_tensors(part, owned)


add_hints(Groups, OPTIMIZERS)


def _joined(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    return {f"{number}.{key}": value for number, part in enumerate(parts) for key, value in part.items()}


def _parted(state: Mapping[str, Any], count: int, name: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, value in state.items():
        number, _, rest = str(key).partition(".")
        if not number.isdecimal() or int(number) >= count:
            raise ArgumentError(f"{name}: {key!r} is not in the state of {count} groups")
        parts[int(number)][rest] = value
    return parts
