"""``ForwardAlong``: forward mode with the eigenvectors of real matrices that are continuous along the tangent.

Vectors of equal eigenvalues or singular values are any basis of their space; along a line through the matrix one basis
is the limit of the vectors at nearby points. With this basis a function of values and vectors gets its derivative, if
it has one; with any other, rules would divide 0 by 0. (Kato, Perturbation theory for linear operators, 1976)
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.base import check_kind
from backburn.autodiff.forward import Forward
from backburn.autodiff.forward_codegen import Dual
from backburn.backend.contract import BK
from backburn.base.contexts import RECORDING
from backburn.ops.bodies.adjoints import is_complex
from backburn.ops.bodies.decompositions import eigh_tangents, svd_tangents
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.vectors_along import eigh_to_second, svd_to_second, turned_along_eigh, turned_along_svd


class ForwardAlong(Forward[BK]):
    """:class:`Forward`, in which ``eigh`` and ``svd`` choose vectors by the tangent of their operand."""

    def eigh(self, x: Any, /) -> Any:
        """Eigenvalues, and eigenvectors chosen by the tangent."""
        k: Any = self._inner
        if _tangent(self, x) is None or is_complex(k, x.value):
            return super().eigh(x)
        out = turned_along_eigh(k, x.tangent, k.eigh(x.value))
        return tuple(map(Dual, out, eigh_tangents(k, x.tangent, out, 0.0)))

    def svd(self, x: Any, /, full: bool = False) -> Any:
        """Singular values, and vectors chosen by the tangent."""
        k: Any = self._inner
        if _tangent(self, x) is None or is_complex(k, x.value):
            return super().svd(x, full)
        out = turned_along_svd(k, x.tangent, k.svd(x.value, full))
        return tuple(map(Dual, out, svd_tangents(k, x.tangent, out, x.value.shape, 0.0)))


class AlongTwice(ForwardAlong[BK]):
    """A second :class:`ForwardAlong` on the same line: tangents of tangents are second derivatives along it.

    The level below is a :class:`ForwardAlong`, or a level of ``vmap`` above one. Primitives from there move along the
    line as well: they have the same tangent here. So values and vectors have two derivatives along one line, also at
    equal values; along two lines at once they have none.
    """

    def from_inner(self, x: Any) -> Any:
        """An inner float primitive, which moves along the line as it does below."""
        return Dual(check_kind("float", self, "from_inner", x), tangent_below(self._inner, x))

    def detach(self, x: Any, /) -> Any:
        """``x`` with a NaN tangent, if it has one: the part of the value that does not move is unknown."""
        if x.tangent is None:
            return Dual(x.value)
        k: Any = self._inner
        return Dual(x.value, k.full(x.value.shape, float("nan"), k.dtype(x.value)))

    def eigh(self, x: Any, /) -> Any:
        """Eigenvalues and vectors with their second derivatives."""
        k: Any = self._inner
        if x.tangent is None or 0 in x.shape or not RECORDING.get():
            return super().eigh(x)
        return self._joined(eigh_to_second(k, self._path(x)), k.dtype(x.value))

    def svd(self, x: Any, /, full: bool = False) -> Any:
        """Singular values and vectors with their second derivatives."""
        k: Any = self._inner
        if x.tangent is None or 0 in x.shape or not RECORDING.get():
            return super().svd(x, full)
        return self._joined(svd_to_second(k, self._path(x), full), k.dtype(x.value))

    def _path(self, x: Any) -> tuple[Any, Any, Any]:
        """A primitive and both of its derivatives along the line, as constants of the level below."""
        k: Any = self._inner
        bend = tangent_below(k, x.tangent)
        found = (value_below(k, x.value), value_below(k, x.tangent))
        bend = k.zeros(x.value.shape, k.dtype(x.value)) if bend is None else bend
        return upcast_half(k, found[0]), upcast_half(k, found[1]), upcast_half(k, bend)

    def _joined(self, results: tuple[Any, ...], dtype: Any) -> Any:
        """Results with both derivatives, each as one primitive."""
        k: Any = self._inner
        cast = ([k.astype(x, dtype) for x in found] for found in results)
        return tuple(Dual(join_below(k, a, b), join_below(k, b, c)) for a, b, c in cast)


def stands_on_line(k: Any) -> bool:
    """Whether ``k`` follows a line: a :class:`ForwardAlong`, or a level of ``vmap`` above one."""
    while hasattr(k, "unmapped"):
        k = k.inner_backend
    return k.__class__ is ForwardAlong


def value_below(k: Any, x: Any) -> Any:
    """A primitive of a level on a line without its tangent."""
    if hasattr(k, "unmapped"):
        return k.over(x, lambda value: value_below(k.inner_backend, value))
    return Dual(x.value)


def tangent_below(k: Any, x: Any) -> Any:
    """The tangent of a primitive of a level on a line, as a constant of that level; None where it has none."""
    if hasattr(k, "unmapped"):
        found = tangent_below(k.inner_backend, k.unmapped(x))
        return None if found is None else k.over(x, lambda _: found)
    return None if x.tangent is None else Dual(x.tangent)


def join_below(k: Any, x: Any, t: Any) -> Any:
    """The primitive of a level on a line that has the value ``x`` and the tangent ``t``, constants of that level."""
    if hasattr(k, "unmapped"):
        return k.over_both(x, t, lambda a, b: join_below(k.inner_backend, a, b))
    return Dual(x.value, t.value)


def _tangent(level: Any, x: Any) -> Any:
    """The tangent by which vectors are chosen; None if a level below chooses them: they can follow only one line."""
    below = level.inner_backend
    while below is not None:
        if isinstance(below, ForwardAlong):
            return None
        below = getattr(below, "inner_backend", None)
    return x.tangent if x.__class__ is Dual and RECORDING.get() else None
