"""Helpers of decompositions for real or complex matrices: adjoints and phases.

Cotangents are bilinear. Rules of decompositions, which are not holomorphic, take the conjugate of their cotangents
first, compute with adjoints, and return the conjugate.
"""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import int64
from backburn.ops.bodies.scalars import is_scalar
from backburn.ops.bodies.slicing import transpose

#: A vector's sign or phase is that of its first element of at least this fraction of the largest.
LEADING = 0.3


def is_complex(k: Any, x: Any) -> bool:
    """Whether a primitive is complex."""
    return bool(k.dtype(x).kind == "complex")


def conj(k: Any, x: Any) -> Any:
    """The conjugate; None stays None."""
    return x if x is None or not is_complex(k, x) else k.conj(x)


def adjoint(k: Any, x: Any) -> Any:
    """The transposed conjugate of matrices."""
    return transpose(k, conj(k, x))


def real_part(k: Any, x: Any) -> Any:
    """The real part."""
    return k.real(x) if is_complex(k, x) else x


def sizes(k: Any, x: Any) -> Any:
    """The absolute values, which are real."""
    return k.modulus(x) if is_complex(k, x) else k.abs(x)


def directions(k: Any, x: Any) -> Any:
    """``x / |x|``, and 0 at 0."""
    return k.phase(x) if is_complex(k, x) else k.sign(x)


def units(k: Any, x: Any) -> Any:
    """``x / |x|``, and 1 at 0."""
    found = directions(k, x)
    return k.where(k.equal(found, 0.0), 1.0, found)


def alike(k: Any, values: Any, x: Any) -> Any:
    """Real ``values``, or a Python number, in the dtype of ``x``."""
    if is_scalar(values) or is_complex(k, values) or not is_complex(k, x):
        return values
    return k.complex(values, 0.0)


def scaled(k: Any, x: Any, factors: Any) -> Any:
    """``x`` times real numbers."""
    return k.mul(x, alike(k, factors, x))


def leading(k: Any, vectors: Any) -> Any:
    """The index in each column of its first element of at least three tenths of the largest, as a row."""
    axis, size = len(vectors.shape) - 2, sizes(k, vectors)
    large = k.greater_equal(size, k.mul(k.max(size, (axis,), True), LEADING))
    return k.argmax(k.where(large, 1.0, k.zeros(size.shape, k.dtype(size))), axis, True)


def signs(k: Any, vectors: Any) -> Any:
    """The factors, as a row, that make the leading element of each column real and positive."""
    shape = vectors.shape
    if 0 in shape:
        return k.ones((*shape[:-2], 1, shape[-1]), k.dtype(vectors))
    return conj(k, units(k, k.take_along_axis(vectors, leading(k, vectors), len(shape) - 2)))


# ---- what a fixed phase adds to derivatives ----


def _at_leading(k: Any, row: Any, vectors: Any) -> Any:
    """``i`` times a real number per column, over its leading element, at that element's position; 0 elsewhere."""
    first, axis = leading(k, vectors), len(vectors.shape) - 2
    over = k.div(row, k.real(k.take_along_axis(vectors, first, axis)))
    places = k.reshape(k.arange(0, vectors.shape[axis], 1, int64), (vectors.shape[axis], 1))
    turn = k.complex(k.zeros(over.shape, k.dtype(over)), over)
    return k.where(k.equal(places, first), turn, 0.0)


def turning(k: Any, vectors: Any, g: Any) -> Any:
    """The negative derivative for the phase of each column, from the conjugate cotangent ``g``; as a row."""
    return k.imag(k.sum(k.mul(k.conj(vectors), g), (len(vectors.shape) - 2,), True))


def with_phase(k: Any, g: Any, vectors: Any, turn: Any) -> Any:
    """The conjugate cotangent ``g`` of vectors with a fixed phase, converted to one of vectors with any phase.

    Their phase follows that of their leading element; ``turn`` is :func:`turning`, summed over all that share it.
    """
    return k.sub(g, _at_leading(k, turn, vectors))


def phase_tangent(k: Any, t: Any, vectors: Any) -> Any:
    """The change of phase of each column, as a row of imaginary numbers, that keeps its leading element real."""
    axis, first = len(vectors.shape) - 2, leading(k, vectors)
    moved, at = (k.take_along_axis(x, first, axis) for x in (t, vectors))
    angle = k.neg(k.div(k.imag(moved), k.real(at)))
    return k.complex(k.zeros(angle.shape, k.dtype(angle)), angle)
