"""``ForwardAlong``: forward mode with the eigenvectors that are continuous along the tangent.

Vectors of equal eigenvalues or singular values are any basis of their space; along a line through the matrix one basis
is the limit of the vectors beside it. With this one a function of values and vectors that has a derivative gets it,
whereas rules for whichever basis there is would divide 0 by 0. (Kato, Perturbation theory for linear operators, 1976)
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.forward import Forward
from backburn.autodiff.forward_codegen import Dual
from backburn.backend.contract import BK
from backburn.base.contexts import RECORDING
from backburn.ops.bodies.vectors_along import turned_along_eigh, turned_along_svd
from backburn.ops.decompositions import eigh_tangents, svd_tangents


class ForwardAlong(Forward[BK]):
    """:class:`Forward`, in which ``eigh`` and ``svd`` choose vectors by the tangent of their operand."""

    def eigh(self, x: Any, /) -> Any:
        """Eigenvalues and those eigenvectors."""
        k: Any = self._inner
        if _tangent(self, x) is None:
            return super().eigh(x)
        out = turned_along_eigh(k, x.tangent, k.eigh(x.value))
        return tuple(map(Dual, out, eigh_tangents(k, x.tangent, out, 0.0)))

    def svd(self, x: Any, /, full: bool = False) -> Any:
        """Singular values and those vectors."""
        k: Any = self._inner
        if _tangent(self, x) is None:
            return super().svd(x, full)
        out = turned_along_svd(k, x.tangent, k.svd(x.value, full))
        return tuple(map(Dual, out, svd_tangents(k, x.tangent, out, x.value.shape, 0.0)))


def _tangent(level: Any, x: Any) -> Any:
    """The tangent along which vectors are chosen; none where a level below chooses them, for one line alone."""
    below = level.inner_backend
    while below is not None:
        if isinstance(below, ForwardAlong):
            return None
        below = getattr(below, "inner_backend", None)
    return x.tangent if x.__class__ is Dual and RECORDING.get() else None
