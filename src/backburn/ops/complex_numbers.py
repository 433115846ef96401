"""Complex numbers and their parts.

Complex primitives are float primitives of another dtype. Cotangents of the contract are bilinear: the derivative of a
real ``L`` along ``t`` is the real part of the sum of cotangent times ``t``. The rule of a holomorphic operation is then
that of the real one, without a conjugate; only the operations here are not holomorphic.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol, overload

from backburn.base.errors import Unsupported
from backburn.ops.elementwise import nonzero_divisor
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.rules.tangents import linear_in, tangent
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q


def without_complex(name: str) -> NoReturn:
    """The body of an operation that a backend with complex dtypes implements."""
    raise Unsupported(f"{name}: this backend has no complex numbers; one that has them implements {name}")


def turned(k: Any, p: Any, part: Any, x: Any) -> Any:
    """``i p part / |x|``: how the phase ``p`` changes as ``x`` moves by ``part`` perpendicular to itself; 0 at 0."""
    step = k.div(part, nonzero_divisor(k, k.modulus(x)))
    return k.mul(p, k.complex(k.zeros(step.shape, k.dtype(step)), step))


def grad_phase(k: Any, g: Any, x: Any, out: Any) -> Any:
    """The gradient of the phase, which only changes perpendicular to itself."""
    return turned(k, k.conj(out), k.imag(k.mul(g, out)), x)


class ComplexNumbers(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations between complex numbers and real ones."""

    @overload
    def complex(self, x: F, y: F | float, /) -> F: ...
    @overload
    def complex(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, result="complex", differentiable=True)
    def complex(self, x: Any, y: Any, /) -> Any:
        """The complex number with the real part ``x`` and the imaginary part ``y``, float32 or float64.

        One of them may be a Python number, never both.
        """
        return without_complex("complex")

    gradient_rule(complex, x=lambda k, g: k.real(g), y=lambda k, g: k.neg(k.imag(g)))
    linear_in(complex)

    @operation(kinds="C", shape=unchanged, result="real", differentiable=True)
    def real(self, x: F, /) -> F:
        """The real part."""
        return without_complex("real")

    gradient_rule(real, x=lambda k, g: k.complex(g, 0.0))
    linear_in(real)

    @operation(kinds="C", shape=unchanged, result="real", differentiable=True)
    def imag(self, x: F, /) -> F:
        """The imaginary part."""
        return without_complex("imag")

    gradient_rule(imag, x=lambda k, g: k.complex(0.0, k.neg(g)))
    linear_in(imag)

    @operation(kinds="C", shape=unchanged, differentiable=True)
    def conj(self: Any, x: F, /) -> F:
        """The conjugate, with the negative imaginary part."""
        return self.complex(self.real(x), self.neg(self.imag(x)))

    gradient_rule(conj, x=lambda k, g: k.conj(g))
    linear_in(conj)

    @operation(kinds="C", shape=unchanged, result="real", differentiable=True)
    def modulus(self: Any, x: F, /) -> F:
        """The absolute value, without intermediate overflow. The gradient at 0 is 0."""
        return self.hypot(self.real(x), self.imag(x))

    gradient_rule(modulus, x=lambda k, g, x: k.mul(k.complex(g, 0.0), k.conj(k.phase(x))))
    tangent(modulus, x=lambda k, t, x: k.real(k.mul(t, k.conj(k.phase(x)))))

    @operation(kinds="C", shape=unchanged, differentiable=True)
    def phase(self: Any, x: F, /) -> F:
        """``x / |x|``, and 0 at 0, where the gradient is 0 too. NaN for infinite ``x``."""
        size = self.modulus(x)
        size = self.where(self.equal(size, 0.0), 1.0, size)
        found = self.complex(self.div(self.real(x), size), self.div(self.imag(x), size))
        return self.where(self.equal(x, 0.0), 0.0, found)  # whatever the signs of the zeros

    gradient_rule(phase, x=grad_phase)
    tangent(phase, x=lambda k, t, x, out: turned(k, out, k.imag(k.mul(k.conj(out), t)), x))

    @operation(kinds="C", shape=unchanged, result="real", differentiable=True)
    def angle(self: Any, x: F, /) -> F:
        """The angle to the positive real axis, from -pi to pi. The gradient at 0 is 0."""
        return self.atan2(self.imag(x), self.real(x))
