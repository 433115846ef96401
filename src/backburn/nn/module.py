"""``Module``: a model, or a part of one.

A module is a plain Python object that holds immutable tensors. Its method ``forward`` computes its result; its parts
are found by walking over its attributes, and need no registration::

    class Scaled(Module):
        def __init__(self, size: int) -> None:
            self.scale = parameter(ones((size,)))
            self.layers = [Linear(size, size), ReLU()]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.scale * x

Modules are nodes of trees (:mod:`backburn.base.trees`), so that whatever works on trees works on models.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from backburn.backend.contract import AnyBackend, is_autodiff
from backburn.backend.placing import levels_of, place_like
from backburn.base.contexts import ACTIVE
from backburn.base.dtypes import ComplexDType, FloatDType, as_dtype, complex_of
from backburn.base.errors import ArgumentError, BackburnError, DTypeError, GraphError, ShapeError, Unsupported, hint_for
from backburn.base.foreign import listed
from backburn.base.module_calls import WATCHERS, module_call
from backburn.base.mutable_trees import Leaf, MutableTree, path_matches
from backburn.base.trees import NODE_TYPES, NodeType, Parts, add_node_type, flatten, joined, leaves_with_paths, tree_map
from backburn.nn.module_repr import module_repr, repr_html
from backburn.tensor.classes import DIFFERENTIABLE, FloatTensor, Tensor
from backburn.tensor.core.defaults import as_backend, default_dtype
from backburn.tensor.core.dispatch import cast as cast_to
from backburn.tensor.core.dispatch import tensor_operand
from backburn.tensor.core.host import asarray
from backburn.tensor.core.levels import has_history
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import TENSORS, is_tensor, wrap
from backburn.tensor.shape import concat

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
M = TypeVar("M", bound="Module")


class _Forward(Protocol[P, R_co]):
    """A protocol with ``forward``: type checkers see a call of a module as a call of ``forward``.

    This does not work for a generic or overloaded ``forward``: write ``module.forward(x)``.
    """

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Module:
    """The base class of models and layers: override ``forward``, and assign tensors and modules to attributes.

    Every float tensor is a parameter unless its attribute is a buffer (:meth:`register_buffer`); int and bool tensors
    are always buffers. A parameter that does not require a gradient is frozen. Attributes may be lists, dicts, tuples
    and dataclasses of tensors and modules, to any depth. A tensor or module in two places is shared: its parameters
    count once. ``copy.deepcopy(model)`` has its own parameters, tied in the same way.

    A tensor that was computed from tracked ones is not a parameter: an attribute set to one (or to a list, tuple or
    dict of such), as in ``self.hidden = self.layer(x)``, is not part of the state. Assigning it over a parameter that
    requires gradients raises :class:`GraphError`, outside transforms. Assigning an array or a number over a tensor
    raises :class:`DTypeError`, since it would not be part of the state.

        >>> from backburn.nn import Linear, Sequential
        >>> model = Sequential(Linear(3, 2), Linear(2, 1))
        >>> [path for path, tensor in model.named_parameters()]
        ['0.weight', '0.bias', '1.weight', '1.bias']
        >>> model.num_parameters
        11
    """

    #: Whether the model is being trained, which layers such as Dropout depend on. Set by :meth:`train`.
    training: bool = True
    #: Attributes that a loaded state may lack, such as counters that other versions do not save.
    OPTIONAL_STATE: ClassVar[frozenset[str]] = frozenset()
    #: PyTorch's names of tensors that this module holds in parts, with the paths of the parts, which PyTorch's state
    #: dicts concatenate along axis 0. :func:`backburn.io.torch_state` writes the first of the names that have a part.
    PACKED_STATE: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    _buffers: frozenset[str] = frozenset()
    _results: frozenset[str] = frozenset()  # the attributes that hold computed tensors

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises :class:`ArgumentError` for ``__slots__``, in which tensors would be neither trained nor saved."""
        super().__init_subclass__(**kwargs)
        if vars(cls).get("__slots__"):
            raise ArgumentError(
                f"{cls.__name__}: attributes in __slots__ would not be part of the state; remove __slots__ (or, from a "
                "dataclass, slots=True)"
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result; to be overridden."""
        raise Unsupported(f"{type(self).__name__} has no forward: define it to compute the module's result")

    def __call__(self: _Forward[P, R_co], *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call ``forward``; override that, not this.

        Errors raised in a submodule get a note with its path.
        """
        try:
            if WATCHERS:
                return cast(R_co, module_call(self, self.forward, args, kwargs))
            return self.forward(*args, **kwargs)
        except BackburnError as error:
            _note_place(error, cast(Module, self))
            raise

    if not TYPE_CHECKING:  # checkers know the attributes

        def __setattr__(self, name: str, value: Any) -> None:
            """Set an attribute. Raises :class:`GraphError` if a computed tensor would replace a parameter.

            Raises :class:`DTypeError` if an array or a number would replace a tensor.
            """
            if isinstance(value, (Tensor, list, tuple, dict)) and name not in self._buffers:
                self._note_result(name, vars(self).get(name), value)
            if value is not None and not is_tensor(value) and is_tensor(vars(self).get(name)) and _is_data(value):
                write = "bb.asarray(...)" + ".require_grad()" * vars(self)[name].is_require_grad
                raise DTypeError(
                    f"{type(self).__name__}.{name}: holds a tensor, and this is not one, so it would not be part of "
                    f"the state: {describe((value,))}. Write {write}"
                )
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        leaves = MutableTree(self, is_tensor).leaves
        roles = {path: "computed" if _is_result(leaf) else "buffer" for leaf in leaves for path in leaf.paths}
        parameters = [path for leaf in self._parameters() for path in leaf.paths]
        return module_repr(self, {path: role for path, role in roles.items() if path not in parameters})

    def _repr_html_(self) -> str:
        """The ``repr`` for notebooks, as a tree."""
        return repr_html(repr(self))

    # ---- parts ----

    def register_buffer(self, name: str, value: Any) -> None:
        """Set attribute ``name`` to a tensor (or a tree of tensors) that is part of the state and never trained.

        With None the buffer is empty. Raises :class:`DTypeError` for arrays and numbers, which are not part of the
        state.
        """
        if value is not None and not is_tensor(value) and _is_data(value):
            raise DTypeError(
                f"register_buffer: {name} is not a tensor: {describe((value,))}; bb.asarray(...) makes one"
            )
        name_buffers(self, {name})
        setattr(self, name, value)

    def named_parameters(self) -> tuple[tuple[str, FloatTensor], ...]:
        """Each parameter with its path, such as ``"layers.0.weight"``; a shared one under its first path."""
        return tuple((leaf.path, leaf.value) for leaf in self._parameters())

    def parameters(self) -> tuple[FloatTensor, ...]:
        """The parameters, each once. An optimizer's ``step`` takes the model itself, whose parameters it replaces."""
        return tuple(leaf.value for leaf in self._parameters())

    def named_buffers(self) -> tuple[tuple[str, Tensor], ...]:
        """Each buffer (part of the state but not a parameter) with its path."""
        return tuple((leaf.path, leaf.value) for leaf in self._tensors() if _is_buffer(leaf))

    def named_modules(self) -> tuple[tuple[str, Module], ...]:
        """The module itself (under the path ``""``) and every module in it, each once, with its first path."""
        found: dict[int, tuple[str, Module]] = {}
        for node in MutableTree(self, is_tensor).nodes:
            if isinstance(node.value, Module):
                found.setdefault(id(node.value), (node.path, node.value))
        return tuple(found.values())

    @property
    def num_parameters(self) -> int:
        """The number of elements of all parameters."""
        return sum(tensor.size for tensor in self.parameters())

    # ---- state ----

    def state_dict(self) -> dict[str, Tensor]:
        """Every parameter and buffer by its path, without history; a shared one is under each of its paths.

        Tensors are immutable, so this is a snapshot that does not change as training continues.
        """
        known = {path for leaf in self._tensors() for path in leaf.paths}
        return {path: _value(leaf) for path, leaf in leaves_with_paths(self) if path in known}

    def rename_weight(self, name: str) -> str | tuple[str, str | tuple[int, ...] | NDArray[Any]] | None:
        """The path of a tensor that published files of this model call ``name``, for :func:`backburn.io.load_weights`.

        To be overridden; returns ``name`` itself. A path with ``"T"`` means that the file has the matrix transposed;
        with axes, that it has the axes in another order; with an array, that row ``i`` of the tensor is row
        ``array[i]`` of the file. None skips the tensor.

            >>> class GPT2(Module):
            ...     def rename_weight(self, name):
            ...         path = name.removeprefix("transformer.")
            ...         return (path, "T") if path.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight")) else path
            >>> GPT2().rename_weight("transformer.h.0.attn.c_attn.weight")
            ('h.0.attn.c_attn.weight', 'T')
        """
        return name

    def _check_metadata(self, where: str, values: Mapping[str, Any], strict: bool) -> None:
        """Check the metadata of a file of weights against this model. To be overridden; accepts any by default."""

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Replace parameters and buffers by the tensors (or arrays) of ``state``, moved to their backends.

        Frozen parameters stay frozen. For a shared tensor, any of its paths suffices. Names that a layer declares in
        :attr:`PACKED_STATE`, such as PyTorch's ``in_proj_weight``, are split into the layer's own. Unless ``strict``,
        missing and unexpected paths are ignored. Raises :class:`ArgumentError` for missing and unexpected paths, and
        for different values under the paths of a shared tensor, :class:`ShapeError` and :class:`DTypeError` for tensors
        that do not fit; then nothing is changed.

            >>> from backburn.nn import Linear
            >>> a, b = Linear(2, 2), Linear(2, 2)
            >>> b.load_state_dict(a.state_dict())
            >>> bool((a.weight == b.weight).all())
            True
        """
        given: object = state
        if not isinstance(given, Mapping):
            inside = "; pass its .state" * isinstance(getattr(given, "state", None), Mapping)
            raise ArgumentError(
                f"load_state_dict: takes tensors by path, as state_dict() gives them, not {given!r:.80}{inside}"
            )
        leaves, packs = state_places(self)
        known = {path for leaf in leaves for path in leaf.paths}
        state = _unpacked(state, packs, {path: leaf.value for leaf in leaves for path in leaf.paths})
        if strict:
            missing = [
                leaf.path for leaf in leaves if not any(p in state for p in leaf.paths) and not is_optional(leaf)
            ]
            _refuse_paths(missing, sorted(map(str, set(state) - known)), known)
        fitting: list[tuple[Leaf, Tensor]] = []
        problems: dict[type[Exception], list[str]] = {ShapeError: [], DTypeError: [], ArgumentError: []}
        for leaf in leaves:
            path = next((p for p in leaf.paths if p in state), None)
            if path is None:
                continue
            old = leaf.value
            try:
                new = constant_on(state[path], old.backend)
            except DTypeError as error:
                raise DTypeError(f"load_state_dict: the value of {path}: {error}. Nothing was loaded") from error
            kinds = new.dtype.kind == "quantized", old.dtype.kind == "quantized"
            if kinds[0] is not kinds[1]:
                advice = "quantize_like(model, state) makes a model for it" if kinds[0] else "load it, then quantize"
                problems[DTypeError].append(f"{path} is {new.dtype} there and {old.dtype} here: {advice}")
            elif new.shape != old.shape:
                problems[ShapeError].append(f"{path} has shape {list(new.shape)} there and {list(old.shape)} here")
            elif new.dtype is not old.dtype:
                problems[DTypeError].append(f"{path} is {new.dtype} there and {old.dtype} here")
            elif len(leaf.paths) > 1 and not kinds[1]:
                problems[ArgumentError] += [
                    f"{path} and {p} are one parameter here and two there: leave one out, or untie them"
                    for p in leaf.paths
                    if p in state
                    and state[p] is not state[path]
                    and not _equal(new, constant_on(state[p], old.backend))
                ]
            fitting.append((leaf, placed_as(new, old)))
        for kind, lines in problems.items():
            if lines:
                raise kind(f"load_state_dict: {'; '.join(lines)}. Nothing was loaded")
        for leaf, new in fitting:
            leaf.put(new.require_grad() if leaf.value.is_require_grad else new)

    # ---- modes ----

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of the module and all modules in it; returns the module.

        Raises :class:`ArgumentError` unless ``mode`` is a bool.
        """
        given: object = mode
        if not isinstance(given, bool):
            raise ArgumentError(f"train: mode is True or False, not {mode!r}; model.eval() is train(False)")
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """``train(False)``."""
        return self.train(False)

    def require_grad(self, pattern: str = "*") -> Self:
        """Make the parameters whose paths match ``pattern`` require gradients; returns the module.

        A pattern has shell wildcards, or is the path of a part, such as ``"layers.0"``, and matches all in it. Raises
        :class:`ArgumentError` if nothing matches, :class:`GraphError` on a backend that does not differentiate.
        """
        return self._replace(pattern, lambda x: x if x.is_require_grad else x.require_grad(), "require_grad")

    def freeze(self, pattern: str = "*") -> Self:
        """Freeze the parameters whose paths match ``pattern``: they require no gradient, and optimizers skip them.

        Patterns and errors are those of :meth:`require_grad`, which undoes it.
        """
        return self._replace(pattern, lambda x: x.detach() if x.is_require_grad else x, "freeze")

    # ---- copies on other backends and in other dtypes ----

    def inner(self) -> Self:
        """A copy on the inner backend, where nothing is recorded. Raises :class:`GraphError` if there is none."""
        return self._copied(lambda x: x.inner())

    def to(self, backend: AnyBackend | str) -> Self:
        """A copy on another backend. Parameters that require gradients also do so there, if the backend differentiates.

        The parameters of the copy are new leaves: unlike with :meth:`Tensor.to <backburn.Tensor.to>`, no gradient flows
        back to those of this module.
        """
        target = as_backend(backend)
        differentiates = is_autodiff(target)

        def moved(x: Any) -> Any:
            there = constant_on(x, target)
            return there.require_grad() if x.is_require_grad and differentiates else there

        return self._copied(moved)

    def astype(self, dtype: FloatDType | ComplexDType | type[float] | str) -> Self:
        """A copy with all float parameters and buffers in another dtype; ints and bools stay as they are.

        A complex dtype makes all of them complex; a float dtype keeps complex ones complex and changes their precision.
        The parameters are new leaves, even if they already have the dtype. Frozen parameters stay frozen, and tied ones
        tied. Raises :class:`DTypeError` for other dtypes.

            >>> from backburn.nn import Linear
            >>> model = Linear(3, 2).astype("float64")
            >>> model.weight.dtype, model.weight.is_require_grad
            (float64, True)
        """
        target = default_dtype() if dtype is float else as_dtype(dtype)
        if not target.has_gradient:
            raise DTypeError(f"astype: takes a float or complex dtype, not {target}")

        def changed(x: Any) -> Any:
            if not x.dtype.has_gradient:
                return x
            own = complex_of(target) if x.dtype.kind == "complex" and target.is_floating else target
            if x.dtype is own:
                return x if x.is_require_grad else x.__class__(x.primitive, x.backend, own)
            new = cast_to(x.detach(), own)
            return new.require_grad() if x.is_require_grad else new

        return self._copied(changed)

    # ---- helpers ----

    def _note_result(self, name: str, held: Any, value: Any) -> None:
        """Record whether an attribute, whose old value is ``held``, is set to computed tensors."""
        inside = ACTIVE.get() is not None  # transforms replace parameters by computed tensors
        if _was_computed(value, inside):
            leaves = (x for x in flatten(held)[0] if is_tensor(x) and x.is_require_grad)
            if not inside and not all(map(_was_computed, leaves)):
                raise GraphError(
                    f"{type(self).__name__}.{name}: a parameter is a leaf, and this was computed from tracked "
                    f"tensors: {describe((value,))}. Write .detach().require_grad()"
                )
            if not is_tensor(held) or (not inside and _was_computed(held)):
                self._results |= {name}
        elif not inside and name in self._results and getattr(value, "is_require_grad", False):
            self._results -= {name}

    def _tensors(self) -> list[Leaf]:
        """The state: parameters and buffers."""
        return [leaf for leaf in MutableTree(self, is_tensor).leaves if not _is_result(leaf)]

    def _parameters(self) -> list[Leaf]:
        return [leaf for leaf in self._tensors() if not _is_buffer(leaf)]

    def _copied(self, change: Callable[[Any], Any]) -> Self:
        """A deep copy with ``change`` applied to each tensor."""
        memo: dict[int, Any] = {}
        for leaf in MutableTree(self, is_tensor).leaves:
            if (new := change(leaf.value)) is not leaf.value:
                memo[id(leaf.value)] = new
        return copy.deepcopy(self, memo)

    def _replace(self, pattern: str, change: Callable[[Any], Any], operation: str) -> Self:
        given: object = pattern
        if not isinstance(given, str):
            raise ArgumentError(f"{operation}: takes one pattern of paths, such as '0.*' or '*.bias', not {given!r}")
        parameters = self._parameters()
        chosen = [leaf for leaf in parameters if any(path_matches(path, pattern) for path in leaf.paths)]
        if parameters and not chosen:
            hint = hint_for(pattern, [path for leaf in parameters for path in leaf.paths])
            raise ArgumentError(f"{operation}: no parameter's path matches {pattern!r}. {hint}")
        for leaf, new in [(leaf, change(leaf.value)) for leaf in chosen]:
            leaf.put(new)
        return self


def parameter(x: Tensor) -> FloatTensor:
    """``x`` as the initial value of a parameter: it requires gradients if its backend differentiates.

    Raises :class:`DTypeError` for anything but a tensor.

    >>> import backburn as bb
    >>> parameter(bb.asarray([1.0])).is_require_grad
    True
    >>> parameter(bb.asarray([1.0], backend="numpy")).is_require_grad
    False
    """
    tensor_operand("parameter", x)
    return x.require_grad() if is_autodiff(x.backend) else cast(FloatTensor, x)


def holding(module: M, **attributes: Any) -> M:
    """A shallow copy of a module with other attributes, set without the checks of an assignment."""
    made = copy.copy(module)
    vars(made).update(attributes)
    return made


#: The module that raised an error, and the note with its path, while the error propagates through outer modules.
_PLACES: WeakKeyDictionary[BackburnError, tuple[Module, str]] = WeakKeyDictionary()


def _note_place(error: BackburnError, module: Module) -> None:
    """Note in an error the path of the submodule in which it was raised; the outermost module's note wins."""
    source, note = _PLACES.setdefault(error, (module, ""))
    path = None if source is module else next((p for p, inside in module.named_modules() if inside is source), None)
    if path is not None:
        if note:
            error.__notes__.remove(note)
        note = f"In {path!r} ({type(source).__name__}) of this {type(module).__name__}."
        error.add_note(note)
        _PLACES[error] = source, note


# ---- modules as nodes of trees ----


def _is_part(value: Any, above: tuple[int, ...] = ()) -> bool:
    """Whether an attribute belongs to the tree: a tensor, a module, or a container that has one or may get one."""
    if is_tensor(value) or isinstance(value, Module):
        return True
    kind = None if value is None else NODE_TYPES[value.__class__]
    if kind is None or id(value) in above:
        return False
    children = kind.flatten(value)[0]
    if not children:
        return isinstance(value, (list, dict))
    for child in children:
        cls = child.__class__
        if cls in TENSORS or (NODE_TYPES[cls] is not None and _is_part(child, (*above, id(value)))):
            return True
    return False


def _is_fixed(value: Any) -> bool:
    """Whether an attribute outside the tree needs no copy: a plain value, or a tuple of them, such as a kernel size."""
    if value.__class__ is not tuple:
        return NODE_TYPES[value.__class__] is None
    for item in value:  # noqa: SIM110 (a generator takes longer than the tuple)
        if NODE_TYPES[item.__class__] is not None:
            return False
    return True


def attribute_parts(module: Module, skip: str = "") -> Parts:
    """The attributes that belong to the tree, their names, and (type, all other attributes)."""
    parts: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name != skip:
            cls = value.__class__
            (parts if cls in TENSORS or (NODE_TYPES[cls] is not None and _is_part(value)) else rest)[name] = value
    return list(parts.values()), list(parts), (type(module), rest)


def module_from_parts(children: Sequence[Any], keys: Sequence[Any], rest: Any) -> Module:
    """A module of the given type with the given attributes; containers are copied."""
    made: Module = object.__new__(rest[0])
    attributes = vars(made)
    attributes.update(zip(keys, children, strict=True))
    for name, value in rest[1].items():
        attributes[name] = value if _is_fixed(value) else tree_map(lambda leaf: leaf, value)
    return made


add_node_type(
    Module,
    NodeType(
        attribute_parts,
        module_from_parts,
        lambda module, name, child: vars(module).__setitem__(name, child),
        shares=True,
        containers=lambda module: (vars(module),),
    ),
)


# ---- helpers of state and paths ----


def _attribute(leaf: Leaf) -> tuple[Module, str]:
    """The module that holds a tensor, and the name of the attribute."""
    node, key = leaf.parents[0]
    while not isinstance(node.value, Module):
        assert node.parent is not None
        node, key = node.parent, node.key
    return node.value, key


def _is_buffer(leaf: Leaf) -> bool:
    """Whether a tensor is not a parameter: neither float nor complex, or in a buffer of the module that holds it."""
    module, name = _attribute(leaf)
    return not leaf.value.dtype.has_gradient or name in module._buffers


def name_buffers(module: Module, names: Set[str]) -> None:
    """Declare attributes as buffers, all in one call, since each call copies the set of buffers."""
    module._buffers, module._results = module._buffers | names, module._results - names


def is_optional(leaf: Leaf) -> bool:
    """Whether a loaded state may lack a tensor."""
    module, name = _attribute(leaf)
    return name in module.OPTIONAL_STATE


def _is_result(leaf: Leaf) -> bool:
    """Whether a tensor is not part of the state: in an attribute that was set to computed tensors."""
    module, name = _attribute(leaf)
    return name in module._results


def _was_computed(value: Any, inside: bool = False) -> bool:
    """Whether a tensor, or every tensor in a container, was computed from tracked ones.

    ``inside`` a transform, tracking on a lower level counts too.
    """
    if value.__class__ in (list, tuple, dict):
        parts = value.values() if value.__class__ is dict else value
        return bool(value) and all(x.__class__ in DIFFERENTIABLE and _was_computed(x, inside) for x in parts)
    if value.__class__ not in DIFFERENTIABLE or not value.is_tracked:
        return inside and value.__class__ in DIFFERENTIABLE and has_history(value)
    if inside and not is_autodiff(value.backend):  # a tangent, or the examples of vmap: no leaf
        return True
    try:
        value.backend.set_require_grad(value.primitive, True)  # refuses anything but a leaf
    except GraphError:
        return True
    return False


def _is_data(value: Any) -> bool:
    """Whether something is a number or an array of another library, or a list of such."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_is_data, value))
    return isinstance(value, (int, float)) or (hasattr(value, "__array__") and not is_tensor(value))


def _equal(x: Any, y: Any) -> bool:
    """Whether two tensors have the same values, NaN included."""
    return x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all())


def _value(x: Any) -> Tensor:
    return cast(Tensor, x.detach() if x.dtype.has_gradient else copy.deepcopy(x))


def constant_on(value: Any, backend: AnyBackend) -> Any:
    """A tensor or an array as a constant on ``backend``."""
    if not is_tensor(value):
        return asarray(value, backend=backend)
    return _value(value).to(backend)


def placed_as(x: Any, like: Any) -> Any:
    """A constant sharded as ``like`` is, if its backend has shards; else unchanged."""
    if not levels_of(like.backend) or x.shape != like.shape:
        return x
    return wrap(place_like(like.backend, x.primitive, like.primitive), like.backend)


#: The path of a packed tensor, and the paths of its parts.
Pack: TypeAlias = tuple[str, tuple[str, ...]]


def state_places(module: Module) -> tuple[list[Leaf], list[Pack]]:
    """The leaves of a module's state, and the packed tensors that the modules in it declare."""
    tree = MutableTree(module, is_tensor)
    packs = [
        (joined(node.path, name), tuple(joined(node.path, part) for part in parts))
        for node in tree.nodes
        if isinstance(node.value, Module)
        for name, parts in node.value.PACKED_STATE.items()
    ]
    return [leaf for leaf in tree.leaves if not _is_result(leaf)], packs


def _unpacked(state: Mapping[str, Any], packs: Iterable[Pack], here: Mapping[str, Any]) -> Mapping[str, Any]:
    """``state`` with packed tensors split into their parts, unless it has a part too or a part is not ``here``."""
    made: Any = state
    for packed, parts in packs:
        if packed not in made or any(part in made or part not in here for part in parts):
            continue
        own = [here[part] for part in parts]
        try:
            value = constant_on(made[packed], own[0].backend)
        except DTypeError as error:
            raise DTypeError(f"load_state_dict: the value of {packed}: {error}. Nothing was loaded") from error
        ends = [sum(x.shape[0] for x in own[: i + 1]) for i in range(len(own))]
        if value.shape != (ends[-1], *own[0].shape[1:]):
            raise ShapeError(
                f"load_state_dict: {packed} has shape {list(value.shape)} there and is made of {', '.join(parts)} "
                f"here, together {[ends[-1], *own[0].shape[1:]]}. Nothing was loaded"
            )
        made = dict(made) if made is state else made
        del made[packed]
        made |= {part: value[end - x.shape[0] : end] for part, x, end in zip(parts, own, ends, strict=True)}
    return made


def packed_state(module: Module) -> dict[str, Tensor]:
    """``module.state_dict()`` with the parts packed that :attr:`Module.PACKED_STATE` declares."""
    state = module.state_dict()
    for packed, parts in state_places(module)[1]:
        own = [state[part] for part in parts if part in state]
        if len(own) == len(parts) and len({x.shape[1:] for x in own}) == 1:
            joint = own[0] if len(own) == 1 else concat(own, axis=0)
            state = {path: x for path, x in state.items() if path not in parts} | {packed: joint}
    return state


def _refuse_paths(missing: list[str], unexpected: list[str], known: Iterable[str]) -> None:
    if not missing and not unexpected:
        return
    words = []
    if missing:
        words.append(f"missing: {listed(missing)}.")
    if unexpected:
        words.append(f"unexpected: {listed(unexpected)}. {hint_for(unexpected[0], known)}")
    raise ArgumentError(f"load_state_dict: {' '.join(words)} Nothing was loaded; strict=False ignores such paths")
