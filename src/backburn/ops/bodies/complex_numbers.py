"""Functions of complex numbers, computed from their parts, for backends whose own lose digits."""

from __future__ import annotations

from typing import Any


def expm1(k: Any, x: Any) -> Any:
    """``exp(x) - 1``, accurate to the last digits also near 0.

    The real part is ``expm1(a) cos(b) - 2 sin(b / 2)**2``; where an operand is not finite, the definition holds.
    """
    a, b = k.real(x), k.imag(x)
    half = k.sin(k.mul(b, 0.5))
    real = k.sub(k.mul(k.expm1(a), k.cos(b)), k.mul(k.mul(half, half), 2.0))
    found = k.complex(k.add(real, 0.0), k.mul(k.exp(a), k.sin(b)))  # a real part that is 0 is not -0
    return k.where(k.isfinite(x), found, k.sub(k.exp(x), 1.0))


def log1p(k: Any, x: Any) -> Any:
    """``log(1 + x)``, accurate to the last digits also near 0.

    The real part is ``log1p(a (2 + a) + b**2) / 2`` for small parts, whose squares do not overflow, and else
    ``log(|1 + x|)``.
    """
    a, b = k.real(x), k.imag(x)
    small = k.less(k.maximum(k.abs(a), k.abs(b)), 0.5)
    c, d = (k.where(small, part, 0.0) for part in (a, b))
    near = k.mul(k.log1p(k.add(k.mul(c, k.add(c, 2.0)), k.mul(d, d))), 0.5)
    above = k.add(a, 1.0)
    return k.complex(k.where(small, near, k.log(k.hypot(above, b))), k.atan2(b, above))
