"""``Optimizer``, the base class of optimizers: finding parameters, updating them, and keeping and saving state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from itertools import chain
from math import inf, prod
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from backburn.autodiff import Gradients
from backburn.backend.contract import AnyBackend, is_autodiff
from backburn.backend.host_numbers import RECORDING_STEP, Recording
from backburn.backend.placing import full_like, levels_of, place_like
from backburn.base.contexts import ACTIVE
from backburn.base.dtypes import float32
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    CaptureError,
    DTypeError,
    GraphError,
    ShapeError,
    hint_for,
)
from backburn.base.mutable_trees import Leaf, MutableTree
from backburn.hints import add_hints
from backburn.hints.arguments import explained
from backburn.hints.general import OPTIMIZERS
from backburn.optim.complex_parameters import as_complex, as_real, dtype_of_steps, shape_of_steps
from backburn.optim.fixed_attributes import FixedAttributes
from backburn.optim.gradients import by_leaf, is_float_tensor, is_tree, place_of_steps
from backburn.tensor.classes import FloatTensor
from backburn.tensor.core.copying import copy_if_overwritten
from backburn.tensor.core.host import asarray
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import bounded, flags
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.gradients import conjugate

if TYPE_CHECKING:
    from typing import Self

Rate = float | Callable[[int], float]
_TREES = (list, tuple, dict, Iterator)

#: The approximate number of elements of 16-bit parameters that are updated at once, as copies in float32.
WIDENED = 1 << 24

_STEP, _TENSORS = attrgetter("step"), attrgetter("tensors")


class ParameterState:
    """An optimizer's state for one parameter: the number of its steps, and some tensors on ``backend``.

    The tensors are in the order of the optimizer's ``remembers``, and are not shared: steps and replays replace their
    primitives. These are ``owned`` if nothing else refers to them, so that the next step may reuse their memory.
    """

    __slots__ = ("backend", "owned", "step", "tensors")

    def __init__(self, backend: AnyBackend, step: int, values: list[Any], owned: bool) -> None:
        self.backend = backend
        self.step = step
        self.tensors = [FloatTensor(value, backend, backend.dtype(value)) for value in values]
        self.owned = owned

    def __copy__(self) -> ParameterState:
        """A state with separate tensors over the same primitives, which neither state owns any more."""
        self.owned = False
        return ParameterState(self.backend, self.step, [x._primitive for x in self.tensors], False)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParameterState:
        """A copy whose memory no captured step overwrites."""
        made = self.__copy__()
        made.tensors = [*map(copy_if_overwritten, made.tensors)]
        return made

    def shown(self) -> list[FloatTensor]:
        """The tensors as callers may keep them: their values do not change."""
        return [FloatTensor(x._primitive, x._backend, x._dtype) for x in self.tensors]


class Update(NamedTuple):
    """A parameter to update: the backend that computes it, its gradient there, and its state.

    If it ``widens``, parameter and gradient are cast to float32 for the update.
    """

    leaf: Leaf
    k: Any
    gradient: Any
    state: ParameterState
    widens: bool


class StepInputs(NamedTuple):
    """The inputs of one step, primitives and numbers, for parameters of one dtype on one backend.

    ``remembered`` has one list of tensors, parameter by parameter, for each name of the optimizer's ``remembers``; with
    ``donate`` their memory may be reused. ``step`` is the number of the step, if the optimizer depends on it.
    """

    params: list[Any]
    grads: list[Any]
    remembered: list[list[Any]]
    lr: float
    step: int
    donate: bool


class Optimizer(FixedAttributes):
    """The base class of optimizers: parameters are found by walking over the model, and their state is kept by path.

    A model is a module or any other tree of tensors that can be changed in place. Steps are computed on the inner
    backend, where nothing is recorded. Parameters of 16-bit floats are updated, and their state is kept, in float32. A
    complex parameter is updated as two reals, its real and its imaginary part, which its state has along a first axis
    of length 2.

    Options may be set between steps, as in ``optimizer.lr = 0.5 * optimizer.lr``, and are validated; those that
    determine the kept state are fixed. A subclass sets all attributes in ``__init__``.
    """

    #: The names of the state tensors of each parameter.
    remembers: tuple[str, ...] = ()
    #: The options that are numbers from 0 on, each with its exclusive upper bound.
    _numbers: ClassVar[Mapping[str, float]] = {}
    #: The options that are True or False.
    _flags: ClassVar[tuple[str, ...]] = ()
    #: Whether a step depends on its number.
    _corrects = False
    #: Whether a step is an operation of the contract, which some backends compute for 16-bit parameters directly.
    _is_operation = False

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Raise for a model or parameters in place of ``lr``: an optimizer gets them at each step."""
        if args and ("lr" in options or isinstance(args[0], _TREES) or hasattr(args[0], "parameters")):
            name = cls.__name__
            raise ArgumentError(f"{name}: takes no parameters, and lr comes first: {name}(0.01).step(model, gradients)")
        return super().__new__(cls)

    def __init__(self, lr: Rate) -> None:
        """``lr`` is a number, or a function of the number of steps done before."""
        self.lr: Rate = lr
        #: The number of steps done.
        self.steps = 0
        self._states: dict[str, ParameterState] = {}
        self._tree: MutableTree | None = None
        self._foreign = False

    def __repr__(self) -> str:
        options = [n for n in signature(type(self)).parameters if hasattr(self, n)]
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in options)})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option to a valid value, or another existing attribute."""
        if "_is_complete" not in vars(self) or name.startswith("_"):
            super().__setattr__(name, self._checked(name, value))
            return
        before, old = self.remembers, getattr(self, name, None)
        super().__setattr__(name, self._checked(name, value))
        if self.remembers != before:
            super().__setattr__(name, old)
            kind = type(self).__name__
            raise ArgumentError(
                f"{kind}: {name} determines the kept state, and cannot become {value!r} now: create another {kind}"
            )

    def _checked(self, name: str, value: Any) -> Any:
        """The valid value of an option. Raises :class:`ArgumentError` for an invalid one."""
        kind = type(self).__name__
        if name in self._numbers:
            return bounded(kind, name, value, least=0, below=self._numbers[name])
        if name in self._flags:
            flags(kind, **{name: value})
        return bounded(kind, name, value, least=0, below=inf) if name == "lr" and not callable(value) else value

    @abstractmethod
    def _update(self, k: Any, inputs: StepInputs) -> tuple[Any, ...]:
        """The new values of parameters of one dtype, followed by those of each list of their state."""

    @explained
    def step(self, model: Any, gradients: Any) -> None:
        """Update each parameter of ``model`` that has a gradient.

        ``gradients`` is what ``backward`` returned, a dict from paths to tensors, or a tree like the model, as
        ``bb.grad(f)(model)`` returns. A shared parameter is updated once, and replaced by the same new tensor
        everywhere; gradients under several of its paths are summed, unless they are the same tensor. Parameters without
        a gradient, such as frozen ones, are unchanged. The new parameters are leaves that require gradients as the old
        ones did.

        Raises :class:`GraphError` if no parameter has a gradient, :class:`ArgumentError` for an unknown path, and the
        corresponding error for a gradient of another shape, dtype or backend; then nothing is changed.
        """
        leaves = self._leaves(model)
        active = ACTIVE.get()
        if active is not None and any(leaf.value.backend is active for leaf in leaves):
            raise GraphError(
                "step: the model is an argument of a transform, whose derivatives (or examples) would end at the new "
                "parameters, which are leaves. Inside, step with bb.trees.tree_map(lambda p, g: p - lr * g, model, "
                "gradients); or step outside: one optimizer trains stacked models by the sum of bb.vmap of their loss"
            )
        if is_tree(gradients):
            given = by_leaf("step", model, leaves, gradients)
            found = [given[i].primitive if i in given else None for i in range(len(leaves))]
        else:
            found = _found(leaves, gradients)
        recording = RECORDING_STEP.get()
        if recording is None:
            lr = self._rate()
        else:
            lr, options = recording.number(self._rate), self._options()
            recording.assume(lambda: self._options() == options)
        work = [self._task(leaf, g) for leaf, g in zip(leaves, found, strict=True) if g is not None]
        if not work:
            raise GraphError(
                f"step: none of the {len(leaves)} float tensors of the model has a gradient: were the gradients "
                f"computed with this model, and do its parameters require_grad()?"
            )
        if recording is not None:
            entries = self._states.copy()
            recording.assume(lambda: self._states == entries)  # another state may have been loaded
        groups = self._groups(work)
        numbers = [self._number(group, recording) for group in groups]
        news = [self._renewed(group, lr, number) for group, number in zip(groups, numbers, strict=True)]
        for group, tensors in zip(groups, news, strict=True):
            for update, new in zip(group, tensors, strict=True):
                update.leaf.put(new)
        assert self._tree is not None
        if recording is None:
            self._tree.remember()
        else:
            self._tree = None  # its tensors belong to the recording alone
        if recording is None:
            self._put_steps(self.steps + 1)
        else:
            recording.host(lambda: self._put_steps(self.steps + 1), (lambda: self.steps, self._put_steps))

    def _task(self, leaf: Leaf, gradient: Any) -> Update:
        """The update of a parameter by its gradient. Raises for a parameter that cannot be replaced."""
        if (node := leaf.fixed) is not None:
            raise ArgumentError(
                f"step: takes the model, into which the new parameters are put: step(model, gradients). "
                f"{leaf.path!r} is in a {type(node.value).__name__}, which never changes; use a list or a dict"
            )
        x = leaf.value
        k: Any = place_of_steps(x._backend)
        widens = x._dtype.bits < 32 and not (self._is_operation and k.capabilities.wide_steps)
        return Update(leaf, k, gradient, self._state(leaf, k), widens)

    def begin(self, model: Any, change: Callable[[str, FloatTensor], FloatTensor]) -> None:
        """Initialize the state of each parameter that requires a gradient, as the first step does, and change it.

        Each state tensor, including loaded ones, is replaced by what ``change`` returns for the path of its parameter
        and the tensor.

        >>> import backburn as bb
        >>> model, optimizer = bb.nn.Linear(2, 1, bias=False), bb.optim.SGD(0.1, momentum=0.9)
        >>> optimizer.begin(model, lambda path, x: x + 1.0)
        >>> optimizer.state_tensors()["weight.velocity"].tolist()
        [[1.0, 1.0]]
        """
        self._begin([leaf for leaf in self._leaves(model) if leaf.value.is_require_grad], change)

    def _begin(self, leaves: list[Leaf], change: Callable[[str, FloatTensor], FloatTensor]) -> None:
        """:meth:`begin` for parameters."""
        for leaf in leaves:
            entry = self._state(leaf, place_of_steps(leaf.value._backend))
            entry.tensors = [
                FloatTensor(y._primitive, y._backend, y._dtype) for y in (change(leaf.path, x) for x in entry.shown())
            ]

    def _put_steps(self, steps: int) -> None:
        vars(self)["steps"] = steps

    def _number(self, group: list[Update], recording: Recording | None) -> int:
        """Count a step of a group; returns its number, which changes at each replay if the optimizer depends on it."""
        entries = [update.state for update in group]

        def count() -> int:
            for entry in entries:
                entry.step += 1
            return entries[0].step

        def put(steps: list[int]) -> None:
            for entry, step in zip(entries, steps, strict=True):
                entry.step = step

        if recording is None:
            return count()
        kept = lambda: [*map(_STEP, entries)], put
        if not self._corrects:
            recording.host(count, kept)
            return entries[0].step
        recording.assume(lambda: len({*map(_STEP, entries)}) == 1)
        number: int = recording.number(count, kept)
        return number

    def _rate(self) -> float:
        """The learning rate of the next step."""
        if not callable(self.lr):
            return self.lr
        rate: Any = self.lr(self.steps)
        rate = float(rate) if hasattr(rate, "__float__") else rate
        return bounded(type(self).__name__, f"lr({self.steps})", rate, least=0, below=inf)

    def _options(self) -> dict[str, Any]:
        """The options that are constants of a recorded step; rates and counts are read at each replay."""
        found = {}
        for name, value in vars(self).items():
            if isinstance(value, (int, float, str, tuple)) and name not in ("lr", "steps", "_foreign"):
                found[name] = value
        return found

    def _groups(self, work: list[Update]) -> list[list[Update]]:
        """Parameters that one operation updates: on one backend, in one dtype, at one step if that matters."""
        groups: dict[Any, list[Update]] = {}
        narrow = 0
        for update in work:
            x, entry = update.leaf.value, update.state
            name, portion = dtype_of_steps(x._dtype).name if x._dtype.kind == "complex" else x._dtype.name, 0
            if update.widens:
                name, portion = "float32", narrow // WIDENED
                narrow += prod(x.shape)
            key = (id(update.k), name, portion, entry.owned, entry.step if self._corrects else 0)
            groups.setdefault(key, []).append(update)
        return list(groups.values())

    def _renewed(self, group: list[Update], lr: float, step: int) -> list[FloatTensor]:
        """The new parameters of a group, whose states are updated."""
        k, params, grads = group[0].k, [], []
        for update in group:
            x, gradient = update.leaf.value, update.gradient
            param = x._primitive if x._backend is k else x._backend.inner(x._primitive)
            if x._dtype.kind == "complex":
                param, gradient = as_real(k, param), as_real(k, gradient)
            elif update.widens:
                param, gradient = k.astype(param, float32), k.astype(gradient, float32)
            params.append(param)
            grads.append(gradient)
        columns = zip(*(update.state.tensors for update in group), strict=True)
        remembered = [[x._primitive for x in column] for column in columns]
        results = self._update(k, StepInputs(params, grads, remembered, lr, step, group[0].state.owned))
        has_shards, news = bool(levels_of(k)), list[FloatTensor]()
        count = len(group)
        lists = [results[i * count : (i + 1) * count] for i in range(1 + len(remembered))]
        for update, primitive, *values in zip(group, *lists, strict=True):
            x = update.leaf.value
            home: Any = x._backend
            if has_shards:  # results of differently sharded tensors may be sharded differently
                primitive = _placed_like(k, primitive, params[len(news)])
                pairs = zip(values, update.state.tensors, strict=True)
                values = [_placed_like(k, new, x._primitive) if new.shape == x.shape else new for new, x in pairs]
            update.state.owned = True
            for kept, new in zip(update.state.tensors, values, strict=True):
                kept._primitive = new
            if x._dtype.kind == "complex":
                primitive = as_complex(k, primitive)
            elif update.widens:
                primitive = k.astype(primitive, x.dtype)
            if home is not k:
                primitive = home.new_leaf(primitive)
            news.append(x.__class__(primitive, home, x._dtype))
        return news

    def _leaves(self, model: Any) -> list[Leaf]:
        """The float tensors of ``model``; it is walked over again only when something in it has changed."""
        tree = self._tree
        if tree is None or tree.root is not model or not tree.unchanged():
            tree = MutableTree(model, is_float_tensor)
            self._look_at(tree)
        return tree.leaves

    def _look_at(self, tree: MutableTree) -> None:
        """Take the parameters from a walk over their model."""
        if tree is self._tree:
            return
        self._tree = tree
        if self._foreign:
            self._check_paths(tree)
        self._check_state(tree)

    def _check_paths(self, tree: MutableTree) -> None:
        """Raise for a model other than the one whose state was loaded."""
        known = {path for leaf in tree.leaves for path in leaf.paths}
        if unknown := [path for path in self._states if path not in known]:
            self._tree = None
            raise ArgumentError(
                f"step: the state that was loaded is that of another model: this one has no parameter {unknown[0]!r}. "
                f"{hint_for(unknown[0], known)}"
            )
        self._foreign = False

    def _check_state(self, tree: MutableTree) -> None:
        """Raise for a model whose dtypes or shapes have changed."""
        for leaf in tree.leaves:
            entry, x = self._states.get(leaf.path), leaf.value
            if entry is None:
                continue
            for remembered, shape in zip(entry.tensors, self._shapes(leaf), strict=True):
                wrong_dtype = remembered.dtype is not dtype_of_steps(x.dtype)
                if wrong_dtype or remembered.shape != shape:
                    self._tree = None
                    raise (DTypeError if wrong_dtype else ShapeError)(
                        f"step: the state of {leaf.path} is {describe((remembered,))}, and the parameter is "
                        f"{describe((x,))}: an optimizer belongs to one model"
                    )

    def _state(self, leaf: Leaf, k: AnyBackend) -> ParameterState:
        """The state of a parameter, on the backend where it is updated."""
        entry = self._states.get(leaf.path)
        if entry is None:
            x, first, dtype = leaf.value, self._first(), dtype_of_steps(leaf.value.dtype)
            own = x._primitive if x._backend is k else x._backend.inner(x._primitive)
            if x._dtype.kind == "complex" and self.remembers:
                own = as_real(k, own)
            values = [
                full_like(k, own, first, dtype) if shape == own.shape else k.full(shape, first, dtype)
                for shape in self._shapes(leaf)
            ]
            entry = self._states[leaf.path] = ParameterState(k, 0, values, True)
            return entry
        if entry.backend is not k and entry.backend != k:
            entry.tensors = [x.to(k) for x in entry.shown()]
            entry.backend, entry.owned = k, False
        return entry

    def _shapes(self, leaf: Leaf) -> list[tuple[int, ...]]:
        """The shapes of the state tensors of a parameter."""
        return [shape_of_steps(leaf.value)] * len(self.remembers)

    def _first(self) -> float:
        """The initial value of the state's elements."""
        return 0.0

    # ---- state ----

    def state_dict(self) -> dict[str, FloatTensor | int]:
        """The state for saving: tensors ``"<path>.<name>"``, ``"<path>.step"``, and the total ``"steps"``.

        It is a snapshot that later steps do not change. Hyperparameters are not part of it.
        """
        state: dict[str, FloatTensor | int] = {"steps": self.steps}
        for path, entry in self._states.items():
            state[f"{path}.step"] = entry.step
            entry.owned = False
            for name, x in zip(self.remembers, entry.shown(), strict=True):
                state[f"{path}.{name}"] = copy_if_overwritten(x)
        return state

    def state_tensors(self) -> dict[str, FloatTensor]:
        """The tensors of the state, ``"<path>.<name>"``."""
        return {
            f"{path}.{name}": x
            for path, entry in self._states.items()
            for name, x in zip(self.remembers, entry.shown(), strict=True)
        }

    def held_tensors(self) -> list[FloatTensor]:
        """The tensors themselves, for a captured step."""
        return [*chain.from_iterable(map(_TENSORS, self._states.values()))]

    def load_tensors(self, tensors: Mapping[str, Any], owned: bool) -> None:
        """Replace the tensors of :meth:`state_tensors`."""
        for path, entry in self._states.items():
            entry.tensors = [tensors[f"{path}.{name}"] for name in self.remembers]
            entry.owned = owned

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling and copying, without the cached walk over the model."""
        return {**vars(self), "_tree": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state_dict`, whose values may also be NumPy arrays.

        Raises :class:`ArgumentError` for unknown or missing names, and :class:`DTypeError` for values of another type;
        then nothing is changed.
        """
        given: object = state
        if not isinstance(given, Mapping):
            raise ArgumentError(f"load_state_dict: takes what state_dict() gives, not {given!r}")
        parts: dict[str, dict[str, Any]] = {}
        for key, value in state.items():
            path, _, name = str(key).rpartition(".")
            if key != "steps":
                parts.setdefault(path, {})[name] = value
        expected = {"step", *self.remembers}
        for path, found in parts.items():
            if wrong := found.keys() ^ expected:
                what = "unexpected" if wrong - expected else "missing"
                names = ", ".join(sorted(f"{path}.{name}" for name in (wrong - expected or wrong)))
                raise ArgumentError(f"load_state_dict: {what} in the state of {type(self).__name__}: {names}")
        if "steps" not in state:
            raise ArgumentError(f"load_state_dict: missing in the state of {type(self).__name__}: steps")
        entries = {path: self._loaded(path, found) for path, found in parts.items()}
        self.steps, self._states = _count("steps", state["steps"]), entries
        self._tree, self._foreign = None, True

    def _loaded(self, path: str, found: Mapping[str, Any]) -> ParameterState:
        values = [_tensor(x) for x in (found[name] for name in self.remembers)]
        for name, value in zip(self.remembers, values, strict=True):
            if not is_float_tensor(value):
                raise DTypeError(f"load_state_dict: {path}.{name} is a float tensor, not {type(value).__name__}")
        lowered = [_innermost(value) for value in values]
        backend: Any = lowered[0].backend if lowered else None  # without state, the backend does not matter
        step = _count(f"{path}.step", found["step"])
        return ParameterState(backend, step, [value.primitive for value in lowered], False)


def _placed_like(k: Any, x: Any, like: Any) -> Any:
    """A result of a step, sharded as ``like`` is."""
    made = place_like(k, x, like)
    if made is not x and (recording := RECORDING_STEP.get()) is not None:
        raise recording.refuse(CaptureError("a step whose results are sharded differently from the old tensors"))
    return made


def _count(name: str, steps: Any) -> int:
    """A number of steps, which may be an array, as in files."""
    try:
        count = index(steps)
    except TypeError:
        raise DTypeError(f"load_state_dict: {name} is an integer, not {steps!r}") from None
    if not 0 <= count < 2**63:
        words = f"is a number of steps, not {count}" if -(2**63) < count < 0 else "has more than 64 bits"
        raise ArgumentError(f"load_state_dict: {name} {words}")
    return count


def _tensor(x: Any) -> Any:
    """``x``, as a tensor if it is an array."""
    return asarray(x) if hasattr(x, "__array__") and not is_tensor(x) else x


def _innermost(x: FloatTensor) -> FloatTensor:
    """``x`` on the backend that computes."""
    while is_autodiff(x.backend):
        x = x.inner()
    return x


def _found(leaves: list[Leaf], gradients: Any) -> list[Any]:
    """The primitives of the leaves' gradients in the result of ``backward``, or None for each without one."""
    if not isinstance(gradients, Gradients):
        hint = ": step(model, loss.backward())" if is_tensor(gradients) else ""
        raise DTypeError(f"step: takes the gradients that backward returned, not {type(gradients).__name__}{hint}")
    found, covered = list[Any](), dict[int, bool]()
    for leaf in leaves:
        x = leaf.value
        k: Any = x._backend
        if (is_covered := covered.get(id(k))) is None:
            is_covered = covered[id(k)] = is_autodiff(k) and gradients.covers(k)
        if not is_covered and x.is_require_grad:
            raise BackendMismatchError(
                f"step: the gradients belong to {gradients.backend.spec}, and the parameter is {describe((x,))}"
            )
        gradient = k.grad(x._primitive, gradients) if is_covered else None
        found.append(gradient if gradient is None else conjugate(k.inner_backend, gradient, x._dtype))
    return found


add_hints(Optimizer, OPTIMIZERS)
