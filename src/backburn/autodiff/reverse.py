"""``Autodiff``: reverse-mode differentiation around any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self

from backburn.autodiff.base import BoolOf, DifferentiatingDecorator, IntOf, QuantizedOf, check_kind
from backburn.autodiff.graph import KeptNode, Node, Tracked, identity_rule, leaf_of, next_stamp, reverse
from backburn.autodiff.reverse_codegen import compile_operation
from backburn.backend.contract import BK, FI, AutodiffBackend, FloatsOf
from backburn.backend.registry import check_autodiff_backend
from backburn.backend.wrapper import make_operations
from backburn.base.dtypes import DType
from backburn.base.errors import BackendMismatchError, DTypeError, GraphError, NotDifferentiableError, ShapeError
from backburn.hints import add_hints
from backburn.hints.general import GRADIENTS


class Gradients(Generic[BK]):
    """The result of ``backward``: an inner primitive for every leaf with a gradient.

    ``len`` counts them. It may be computed in one thread and read in another. It belongs to one ``backend``;
    :meth:`Autodiff.grad` reads it.

        >>> import backburn as bb
        >>> w = bb.asarray([1.0, 2.0]).require_grad()
        >>> gradients = (w * w).sum().backward()
        >>> len(gradients), w.grad(gradients).tolist()
        (1, [2.0, 4.0])
    """

    __slots__ = ("__weakref__", "_by_node", "_others", "backend")

    def __init__(self, by_node: dict[Node, Any], backend: Autodiff[BK], others: Iterable[Any] = ()) -> None:
        self._by_node = by_node
        self._others = frozenset(others)
        self.backend = backend

    def covers(self, backend: Any) -> bool:
        """Whether tensors of ``backend`` may have gradients here: of this backend, or one that tensors came from."""
        return backend is self.backend or backend == self.backend or backend.inner_backend in self._others

    def __copy__(self) -> Gradients[BK]:
        """A shallow copy, from which entries may be removed independently."""
        return Gradients(dict(self._by_node), self.backend, self._others)

    def __deepcopy__(self, memo: dict[int, Any]) -> Gradients[BK]:
        """A shallow copy: gradients are never changed, and belong to the leaves of this graph."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        """Raise :class:`GraphError`: gradients belong to leaves of a graph, which cannot be pickled."""
        raise GraphError(
            "gradients belong to the leaves of a graph and cannot be pickled: store the tensors that w.grad(gradients) "
            "gives"
        )

    def __len__(self) -> int:
        return len(self._by_node)

    def __repr__(self) -> str:
        return f"<gradients of {len(self)} tensor{'s' * (len(self) != 1)} on {self.backend.spec}>"

    if not TYPE_CHECKING:  # checkers refuse it as well

        def __getitem__(self, x: Any) -> NoReturn:
            raise TypeError("gradients are read by their tensors: w.grad(gradients), and not gradients[w]")


add_hints(Gradients, GRADIENTS)


class Autodiff(
    DifferentiatingDecorator[BK],
    AutodiffBackend[Tracked[BK], IntOf[BK], BoolOf[BK], QuantizedOf[BK], BK, Gradients[BK]],
):
    """``inner`` with automatic differentiation: a backend like any other, so that it can be wrapped again.

    Its float primitives are inner float primitives plus a node; int, bool and quantized primitives are the inner
    backend's, unchanged. ``Autodiff(Autodiff(b))`` computes second derivatives, and so on. The same inner backend
    always gives the same object.

        >>> from backburn_numpy import NumpyBackend
        >>> import numpy as np
        >>> k = Autodiff(NumpyBackend())
        >>> x = k.set_require_grad(k.from_inner(np.array([1.0, 2.0])), True)
        >>> k.grad(x, k.backward(k.mul(x, x)))
        array([2., 4.])

    Raises an :class:`ArgumentError` that is a TypeError too when ``inner`` is not a backend.
    """

    name = "autodiff"

    @classmethod
    def _wrap(cls, inner: BK) -> Self:
        level = super()._wrap(inner)
        if inner.__class__ is not Autodiff:  # there is nothing to check
            check_autodiff_backend(inner)
        return level

    def dtype(self, x: Any, /) -> DType:
        """The dtype of a primitive. Raises for a float primitive of the inner backend."""
        if x.__class__ is Tracked:
            return self._inner.dtype(x.value)
        return self._dtype_of_unboxed(x)

    def fuse(self, formula: Callable[..., Any], /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """``formula(self, *values)``, computed by the inner backend if nothing is recorded."""
        if any(self.is_tracked(x) for x in values):
            return formula(self, *values)
        inner = (x.value if x.__class__ is Tracked else x for x in values)
        found = self._inner.fuse(formula, *inner, donate=donate)
        return tuple(map(Tracked, found)) if isinstance(found, tuple) else Tracked(found)

    # ---- tracking ----

    def set_require_grad(self, x: Tracked[BK], /, flag: bool) -> Tracked[BK]:
        """``x`` as a leaf that requires a gradient (or, with False, as an untracked tensor); ``x`` is not changed.

        A leaf that already requires a gradient is returned as it is.

        Raises :class:`GraphError` for a tensor that was computed from tracked ones, and
        :class:`NotDifferentiableError` for an int, bool or quantized one.
        """
        node = _float(self, "set_require_grad", x).node
        if node is not None and node.backward is not None:
            advice = "retain_grad() keeps its gradient too" if flag else "detach() gives an untracked tensor"
            raise GraphError(f"set_require_grad: the tensor was computed from tracked ones and is not a leaf; {advice}")
        if flag:
            value: Any = x.value
            return x if node is not None else Tracked(value, leaf_of(self._inner, value))
        return Tracked(x.value)

    def new_leaf(self, x: Any, /) -> Tracked[BK]:
        """An inner float primitive, which is not checked, as a leaf that requires a gradient."""
        return Tracked(x, leaf_of(self._inner, x))

    def is_require_grad(self, x: Tracked[BK], /) -> bool:
        """Whether ``backward`` returns a gradient for ``x``: a leaf that requires one, or a tensor that retains it."""
        return x.__class__ is Tracked and x.node is not None and x.node.keep

    def is_tracked(self, x: Tracked[BK], /) -> bool:
        """Whether ``x`` is on the graph."""
        return x.__class__ is Tracked and x.node is not None

    def detach(self, x: Tracked[BK], /) -> Tracked[BK]:
        """``x`` without its history at this level; inner levels keep theirs."""
        return Tracked(_float(self, "detach", x).value)

    def retain_grad(self, x: Tracked[BK], /) -> Tracked[BK]:
        """``x`` on a node that retains its gradient, which can be read after ``backward`` like that of a leaf.

        Continue with the returned tensor: ``x`` itself is unchanged. Raises for an untracked tensor.
        """
        node = _float(self, "retain_grad", x).node
        if node is None:
            raise GraphError("retain_grad: the tensor is not on the graph, so no gradient flows to it")
        return x if node.keep else Tracked(x.value, KeptNode(identity_rule, (node,), (), x.shape, next_stamp()))

    # ---- the twelve methods ----

    def backward(self, tensor: Tracked[BK], cotangent: Any = None, *, retain_graph: bool = False) -> Gradients[BK]:
        """The gradients of ``tensor`` for every leaf that it was computed from.

        ``cotangent``, an inner primitive of ``tensor``'s shape and dtype, weights its elements; the default is ones
        (the gradient of the sum). The graph is consumed unless ``retain_graph``. Raises :class:`GraphError` for an
        untracked tensor, :class:`ConsumedGraphError` for a consumed graph, :class:`NotDifferentiableError` for an int,
        bool or quantized tensor.
        """
        root = _float(self, "backward", tensor).node
        if root is None:
            raise GraphError(
                f"backward: the tensor is not on the graph of {self.spec}: nothing that it was computed from requires "
                f"a gradient there. Mark an input with require_grad() (in a model, with nn.parameter), and compute "
                f"outside of no_grad(). For a second derivative, write bb.grad(bb.grad(f)); of a tensor on the inner "
                f"level, bb.from_inner(x, backend=outer).require_grad() is a leaf of the outer one"
            )
        k: Any = self._inner
        if cotangent is None:
            cotangent = k.full(tensor.value.shape, 1.0, k.dtype(tensor.value))
        else:
            _check_gradient(self, "backward", tensor, cotangent)
        others: set[Any] = set()
        return Gradients(reverse(k, root, cotangent, retain_graph=retain_graph, others=others), self, others)

    def grad(self: FloatsOf[FI], tensor: Tracked[BK], grads: Gradients[BK]) -> FI | None:
        """The gradient of ``tensor`` as an inner primitive, or None if there is none; ``grads`` is unchanged."""
        entries: dict[Any, FI] = _entries(self, "grad", grads)
        found = entries.get(tensor.node) if tensor.__class__ is Tracked else None
        if found is None:
            _check_own(self, "grad", tensor)
        return found

    def grad_remove(self: FloatsOf[FI], tensor: Tracked[BK], grads: Gradients[BK]) -> FI | None:
        """The gradient of ``tensor``, removed from ``grads``."""
        entries: dict[Any, FI] = _entries(self, "grad_remove", grads)
        found = entries.pop(tensor.node, None) if tensor.__class__ is Tracked else None
        if found is None:
            _check_own(self, "grad_remove", tensor)
        return found

    def grad_replace(self: FloatsOf[FI], tensor: Tracked[BK], grads: Gradients[BK], grad: FI) -> None:
        """Replace the gradient of ``tensor`` by ``grad``, or add it if there was none.

        Raises when the shape, dtype or backend of ``grad`` differ from the tensor's, or the tensor is untracked.
        """
        node = _float(self, "grad_replace", tensor).node
        if node is None:
            raise GraphError("grad_replace: the tensor is not on the graph; mark it with require_grad() first")
        _check_gradient(self, "grad_replace", tensor, grad)
        _entries(self, "grad_replace", grads)[node] = grad

    def inner(self: FloatsOf[FI], tensor: Tracked[BK]) -> FI:
        """The inner float primitive."""
        return _float(self, "inner", tensor).value

    def from_inner(self: FloatsOf[FI], tensor: FI) -> Tracked[BK]:
        """An inner float primitive as an untracked leaf.

        Raises :class:`DTypeError` for a primitive of another kind, :class:`BackendMismatchError` for what is not a
        primitive of the inner backend.
        """
        return Tracked(check_kind("float", self, "from_inner", tensor))


def _float(backend: Any, operation: str, tensor: Any) -> Any:
    """``tensor``, which must be a float primitive of ``backend``."""
    if tensor.__class__ is not Tracked:
        try:
            kind = backend.dtype(tensor).kind
            what = f"{'an' if kind == 'int' else 'a'} {kind} tensor"
            if operation == "inner":
                what += f", whose inner primitive {'q' if kind == 'quantized' else kind}_inner gives"
        except Exception:
            what = f"{type(tensor).__name__}, which is not a float primitive of {backend.spec}"
        raise NotDifferentiableError(f"{operation}: only float tensors have gradients, and this is {what}")
    return tensor


def _check_own(backend: Any, operation: str, tensor: Any) -> None:
    """Raise for anything but a primitive of ``backend``, instead of returning that it has no gradient."""
    value = tensor.value if tensor.__class__ is Tracked else None
    try:
        backend.dtype(tensor)
        known = value.__class__ is not Tracked or hasattr(backend.inner_backend, "inner_backend")
    except Exception:
        known = False
    if not known:
        what = "a primitive of another level" if value is not None else f"{type(tensor).__name__}"
        raise BackendMismatchError(f"{operation}: expected a primitive of {backend.spec}, not {what}")


def _entries(backend: Any, operation: str, grads: Any) -> dict[Node, Any]:
    """The entries of gradients, which must be those of ``backend``."""
    if grads.__class__ is not Gradients:
        raise DTypeError(f"{operation}: expected the gradients that backward returned, not {type(grads).__name__}")
    if not grads.covers(backend):
        raise BackendMismatchError(
            f"{operation}: the gradients belong to {grads.backend.spec}, and this is {backend.spec}"
        )
    return grads._by_node


def _check_gradient(backend: Any, operation: str, tensor: Any, gradient: Any) -> None:
    """Raise for a gradient that does not fit ``tensor``."""
    k = backend.inner_backend
    what = "cotangent" if operation == "backward" else "gradient"
    try:
        dtype = k.dtype(gradient)
    except Exception as cause:
        raise BackendMismatchError(
            f"{operation}: the {what} must be a float primitive of {k.spec}, not {type(gradient).__name__}"
        ) from cause
    if dtype is not k.dtype(tensor.value):
        raise DTypeError(f"{operation}: {_both(backend, what, tensor, gradient)}")
    if tuple(gradient.shape) != tuple(tensor.shape):
        raise ShapeError(f"{operation}: {_both(backend, what, tensor, gradient)}")


def _both(backend: Any, what: str, tensor: Any, gradient: Any) -> str:
    """A gradient and the tensor that it does not fit, in words."""
    k = backend.inner_backend
    one, other = ([str(k.dtype(x)), ",".join(map(str, x.shape))] for x in (gradient, tensor.value))
    return f"the {what} is {one[0]}[{one[1]}] ({k.spec}) and the tensor {other[0]}[{other[1]}] ({backend.spec})"


make_operations(Autodiff, compile_operation)
