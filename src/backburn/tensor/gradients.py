"""The methods of tensors for gradients: marking leaves, ``backward``, and reading the gradients that it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeVar

from backburn.autodiff import reverse
from backburn.backend.contract import is_autodiff
from backburn.base.contexts import ACTIVE
from backburn.base.dtypes import DType
from backburn.base.errors import BackendMismatchError, GraphError, NotDifferentiableError
from backburn.hints.arguments import plain_signature, refuse
from backburn.tensor.core.copying import copy_if_overwritten
from backburn.tensor.core.invalidation import check_valid
from backburn.tensor.core.levels import INNER, inner_of, lift
from backburn.tensor.core.messages import describe, raise_out_of_memory
from backburn.tensor.core.methods import method
from backburn.tensor.core.wrapping import is_tensor, tensor_of

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

T = TypeVar("T", bound="Tensor")

__all__ = ["backward", "detach", "grad", "grad_remove", "grad_replace", "inner", "require_grad", "retain_grad"]


@method
def require_grad(self: Tensor) -> FloatTensor:
    """A leaf with this tensor's values whose gradient ``backward`` computes; the tensor itself is unchanged.

    Raises :class:`NotDifferentiableError` for int, bool and quantized tensors, :class:`GraphError` on a backend without
    autodiff and for a tensor that was computed from tracked ones.

        >>> import backburn as bb
        >>> w = bb.asarray([1.0, 2.0]).require_grad()
        >>> w.grad((w * w).sum().backward())
        Tensor([2., 4.], dtype=float32, backend=numpy)
    """
    _check_outside("require_grad", self)
    return _call_backend("require_grad", self, lambda k: k.set_require_grad(self._primitive, True))


@method
def detach(self: Tensor) -> FloatTensor:
    """This tensor without its history at this level of autodiff."""
    return copy_if_overwritten(_call_backend("detach", self, lambda k: k.detach(self._primitive), plain=True))


@method
def retain_grad(self: Tensor) -> FloatTensor:
    """This tensor with its gradient kept by ``backward``, even if it is not a leaf. Use the returned tensor."""
    return _call_backend("retain_grad", self, lambda k: k.retain_grad(self._primitive))


@method
@plain_signature
def backward(
    self: Tensor, cotangent: Tensor | None = None, *surplus: Never, retain_graph: bool = False, **wrong: Never
) -> reverse.Gradients[Any]:
    """The gradients of this tensor for every leaf it was computed from, in a container.

    ``cotangent``, a tensor of this shape on the inner backend, weights the elements; the default is ones. The graph is
    consumed unless ``retain_graph``. A complex tensor needs a cotangent: ``v`` gives the gradient of the real part of
    ``sum(conj(v) * self)``. Nothing is stored on any tensor: ``w.grad(gradients)`` reads the gradient of ``w``. Raises
    :class:`GraphError` for an untracked tensor and :class:`ConsumedGraphError` for a consumed graph.
    """
    if surplus or wrong:
        refuse(backward, surplus, wrong)
    _check_float("backward", self)
    if cotangent is None and self._dtype.kind == "complex":
        raise complex_loss("backward", self)
    k = _autodiff("backward", self)
    _check_outside("backward", self)
    options: dict[str, Any] = {}
    if cotangent is not None:
        value = lift(_inner_tensor("backward", self, cotangent), k.inner_backend)
        options["cotangent"] = conjugate(k.inner_backend, value, self._dtype)
    if retain_graph:
        options["retain_graph"] = True
    try:
        return k.backward(self._primitive, **options)
    except MemoryError as error:
        raise_out_of_memory("backward", f" Operand: {describe((self,))}.", k.device, error)


@method
def grad(self: Tensor, gradients: reverse.Gradients[Any]) -> FloatTensor | None:
    """This tensor's gradient, a tensor of the inner backend; None if there is none.

    For ``x + iy`` it is ``dL/dx + i dL/dy``, so that ``w - lr * gradient`` descends.
    """
    return _read("grad", self, gradients)


@method
def grad_remove(self: Tensor, gradients: reverse.Gradients[Any]) -> FloatTensor | None:
    """This tensor's gradient, which is removed from ``gradients``."""
    return _read("grad_remove", self, gradients)


@method
def grad_replace(self: Tensor, gradients: reverse.Gradients[Any], grad: Tensor) -> None:
    """Replace this tensor's gradient by ``grad``, a tensor of the inner backend."""
    _check_float("grad_replace", self)
    k = _autodiff("grad_replace", self, gradients)
    value = lift(_inner_tensor("grad_replace", self, grad), k.inner_backend)
    if grad._dtype is self._dtype:  # others are refused
        value = conjugate(k.inner_backend, value, self._dtype)
    k.grad_replace(self._primitive, gradients, value)


@method
def inner(self: T) -> T:
    """This tensor on the inner backend, where this level of autodiff records nothing."""
    check_valid(self)
    k: Any = self.backend
    if inner_of(k) is None:
        raise GraphError(f"inner: {k.spec} does not differentiate; 'autodiff({k.spec})' does")
    return type(self)(getattr(k, INNER[self.dtype.kind])(self._primitive), k.inner_backend, self.dtype)


def conjugate(k: Any, x: Any, dtype: DType) -> Any:
    """Convert a complex cotangent between the contract's convention and that of users; a real one is unchanged."""
    return k.conj(x) if dtype.kind == "complex" else x


def complex_loss(name: str, x: Tensor) -> NotDifferentiableError:
    """The error for a complex number where a gradient needs a real one."""
    return NotDifferentiableError(
        f"{name}: a gradient needs a real number, and this is {describe((x,))}: take bb.real or bb.abs of it. With a "
        f"cotangent, backward(cotangent) and bb.vjp differentiate complex results, and bb.jvp along a direction"
    )


_INSTEAD = "differentiate there with bb.grad or bb.vjp"


def _inside(spec: str) -> str:
    return f"the tensor is on {spec}, inside of a transform"


def _call_backend(name: str, x: Tensor, function: Any, plain: bool = False) -> FloatTensor:
    """``function`` of the tensor's backend, as a tensor; ``plain`` allows backends without autodiff."""
    _check_float(name, x)
    if not plain:
        _autodiff(name, x)
    return tensor_of(function(x._backend), x._backend, x._dtype)


def _check_outside(name: str, x: Tensor) -> None:
    """Reject a tensor of the running transform, for which a gradient from ``backward`` would be a constant."""
    if ACTIVE.get() is x._backend:
        raise GraphError(f"{name}: {_inside(x.backend.spec)}, for which its gradient would be a constant: {_INSTEAD}")


def _check_float(name: str, x: Tensor) -> None:
    check_valid(x)
    if not x._dtype.has_gradient:
        raise NotDifferentiableError(
            f"{name}: only float tensors have gradients, and this is {describe((x,))}; "
            f"astype('float32') makes a float tensor"
        )


def _read(name: str, x: Tensor, gradients: Any) -> FloatTensor | None:
    _check_float(name, x)
    k: Any = x._backend
    try:
        found = getattr(k, name)(x._primitive, gradients)
    except (AttributeError, BackendMismatchError):
        _autodiff(name, x, gradients)  # explains it
        raise
    if found is None:
        return None
    return tensor_of(conjugate(k.inner_backend, found, x._dtype), k.inner_backend, x._dtype)


def _autodiff(name: str, x: Tensor, gradients: Any = None) -> Any:
    """The tensor's backend, which must differentiate and, if gradients are given, be the one that computed them."""
    if not is_autodiff(x._backend):
        spec = x.backend.spec
        if inner_of(x.backend) is not None and ACTIVE.get() is not None:
            raise GraphError(f"{name}: {_inside(spec)}, where nothing is recorded: {_INSTEAD}")
        raise GraphError(
            f"{name}: {spec} does not differentiate: make the tensor on 'autodiff({spec})', or move it there with "
            f".to('autodiff({spec})'). If it is a gradient, nothing has recorded how it was computed: "
            f"bb.grad(bb.grad(f)) is a second derivative"
        )
    if isinstance(gradients, reverse.Gradients) and not gradients.covers(x.backend):
        raise BackendMismatchError(
            f"{name}: the gradients belong to {gradients.backend.spec} and the tensor lives on {x.backend.spec}"
        )
    return x._backend


def _inner_tensor(name: str, x: Tensor, value: Any) -> Any:
    """``value``, which must be a tensor of the inner backend."""
    inner_backend = _autodiff(name, x).inner_backend
    if not is_tensor(value) or value.backend != inner_backend:
        what, advice = type(value).__name__, f"bb.asarray(..., backend={inner_backend.spec!r})"
        if is_tensor(value):
            what, advice = describe((value,)), f".to({inner_backend.spec!r})"
        raise BackendMismatchError(
            f"{name}: gradients are tensors of {inner_backend.spec}, and this is {what}; {advice} makes one"
        )
    return value
