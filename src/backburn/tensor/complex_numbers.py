"""Tensor functions: complex numbers and their parts.

Raise :class:`DTypeError` for kinds of tensors that they do not support, and :class:`Unsupported` on backends that have
no complex tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from backburn.base.dtypes import complex_of
from backburn.base.errors import ShapeError
from backburn.tensor.core import complex_numbers as core
from backburn.tensor.core.dispatch import (
    Scalar,
    call,
    cast,
    create,
    float_operand,
    kind_operand,
    promote_to_tensors,
    tensor_operand,
)
from backburn.tensor.core.messages import describe
from backburn.tensor.core.types import T

if TYPE_CHECKING:
    from backburn.tensor.classes import ComplexTensor, FloatTensor, Tensor


def _is_complex(x: Any) -> bool:
    return bool(x.dtype.kind == "complex")


def complex(x: Tensor | Scalar, y: Tensor | Scalar = 0.0, /) -> ComplexTensor:
    """The complex numbers with the real part ``x`` and the imaginary part ``y``, which broadcast.

    At least one must be a tensor. float64 parts give complex128, all others complex64.

        >>> import backburn as bb
        >>> bb.complex(bb.asarray([1.0, 2.0]), bb.asarray([0.5, -0.5]))
        Tensor([1.+0.5j, 2.-0.5j], dtype=complex64, backend=autodiff(numpy))
    """
    parts = promote_to_tensors("complex", x, y)
    dtype = complex_of(parts[0].dtype)
    core.check_supported("complex", parts[0].backend, dtype)
    return call("complex", *(cast(part, dtype.part) for part in parts))


@overload
def real(x: ComplexTensor, /) -> FloatTensor: ...
@overload
def real(x: T, /) -> T: ...
def real(x: Tensor, /) -> Tensor:
    """The real part, which for real numbers is ``x`` itself.

    >>> import backburn as bb
    >>> bb.real(bb.asarray([1 + 2j])).tolist(), bb.real(bb.asarray([1.0, -2.0])).tolist()
    ([1.0], [1.0, -2.0])
    """
    x = kind_operand("real", x, "FCI")
    return call("real", x) if _is_complex(x) else x


@overload
def imag(x: ComplexTensor, /) -> FloatTensor: ...
@overload
def imag(x: T, /) -> T: ...
def imag(x: Tensor, /) -> Tensor:
    """The imaginary part, which for real numbers is 0.

    >>> import backburn as bb
    >>> bb.imag(bb.asarray([1 + 2j])).tolist(), bb.imag(bb.asarray([1.0, -2.0])).tolist()
    ([2.0], [0.0, 0.0])
    """
    x = kind_operand("imag", x, "FCI")
    return call("imag", x) if _is_complex(x) else create("zeros", x.backend, shape=x.shape, dtype=x.dtype)


def conj(x: T, /) -> T:
    """The complex conjugate, which for real numbers is ``x`` itself.

    >>> import backburn as bb
    >>> bb.conj(bb.asarray([1 + 2j])).tolist(), bb.conj(bb.asarray([1.0, -2.0])).tolist()
    ([(1-2j)], [1.0, -2.0])
    """
    x = kind_operand("conj", x, "FCI")
    return call("conj", x) if _is_complex(x) else x


def angle(x: Tensor, /) -> FloatTensor:
    """The angle of ``x`` to the positive real axis, from -pi to pi; for a real number 0 or pi. The gradient at 0 is 0.

    >>> import backburn as bb
    >>> bb.angle(bb.asarray([1j, -1])).tolist(), bb.angle(bb.asarray([2.0, -2.0])).tolist()
    ([1.5707963705062866, 3.1415927410125732], [0.0, 3.1415927410125732])
    """
    x = tensor_operand("angle", x)
    if _is_complex(x):
        return call("angle", x)
    y = float_operand("angle", x)
    return call("atan2", create("zeros", y.backend, shape=y.shape, dtype=y.dtype), y)


def polar(r: Tensor | Scalar, theta: Tensor | Scalar, /) -> ComplexTensor:
    """The complex numbers of absolute value ``r`` at the angle ``theta`` to the positive real axis; both broadcast.

    >>> import backburn as bb
    >>> bb.polar(bb.asarray([2.0, 3.0]), 0.0).tolist()
    [(2+0j), (3+0j)]
    """
    size, angle = promote_to_tensors("complex", r, theta)
    return complex(call("mul", size, call("cos", angle)), call("mul", size, call("sin", angle)))


def view_as_real(x: ComplexTensor, /) -> FloatTensor:
    """The real and the imaginary part along a new last axis of length 2.

    >>> import backburn as bb
    >>> bb.view_as_real(bb.asarray([1 + 2j, 3j])).tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    z = kind_operand("view_as_real", x, "C")
    return call("stack", [call("real", z), call("imag", z)], axis=z.ndim)


def view_as_complex(x: Tensor, /) -> ComplexTensor:
    """The complex numbers whose real and imaginary parts are along the last axis, of length 2.

    Raises :class:`ShapeError` for another length.

        >>> import backburn as bb
        >>> bb.view_as_complex(bb.asarray([[1.0, 2.0], [0.0, 3.0]])).tolist()
        [(1+2j), 3j]
    """
    parts = float_operand("view_as_complex", x)
    if parts.ndim == 0 or parts.shape[-1] != 2:
        raise ShapeError(f"view_as_complex: the last axis has the length 2. Operand: {describe((x,))}")
    axis = parts.ndim - 1
    return complex(*(call("select", parts, axis=axis, index=i) for i in (0, 1)))
