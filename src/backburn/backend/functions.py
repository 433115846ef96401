"""Functions of each element: powers, logarithms, trigonometry, special functions, rounding.

No operation warns: outside of a function's domain the result is NaN, at a pole it is infinite.
"""

from __future__ import annotations

from typing import Any, Protocol, overload

from backburn.backend.kinds import Kinds
from backburn.backend.shapes import broadcast, unchanged
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q


class Functions(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Functions of one or two real numbers."""
    # ---- powers and logarithms ----

    @overload
    def pow(self, x: F, y: F | float, /) -> F: ...
    @overload
    def pow(self, x: float, y: F, /) -> F: ...
    @overload
    def pow(self, x: I, y: I | int, /) -> I: ...
    @overload
    def pow(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def pow(self, x: Any, y: Any, /) -> Any:
        """``x ** y``; integer exponents are non-negative."""
        return missing("pow")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def sqrt(self, x: F, /) -> F:
        """The square root; NaN below 0."""
        return missing("sqrt")

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def rsqrt(self, x: F, /) -> F:
        """``1 / sqrt(x)``."""
        return self.div(1.0, self.sqrt(x))

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def exp(self, x: F, /) -> F:
        """``e ** x``."""
        return missing("exp")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def expm1(self, x: F, /) -> F:
        """``exp(x) - 1``, exact near 0."""
        return missing("expm1")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def log(self, x: F, /) -> F:
        """The natural logarithm; -inf at 0, NaN below."""
        return missing("log")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def log1p(self, x: F, /) -> F:
        """``log(1 + x)``, exact near 0."""
        return missing("log1p")

    # ---- trigonometry ----

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def sin(self, x: F, /) -> F:
        """The sine of ``x`` in radians."""
        return missing("sin")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def cos(self, x: F, /) -> F:
        """The cosine of ``x`` in radians."""
        return missing("cos")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def tan(self, x: F, /) -> F:
        """The tangent of ``x`` in radians."""
        return missing("tan")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def tanh(self, x: F, /) -> F:
        """The hyperbolic tangent."""
        return missing("tanh")
