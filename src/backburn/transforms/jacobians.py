"""Jacobians and Hessians: cotangents or tangents for all elements at once."""

from __future__ import annotations

import functools
from typing import Any

from backburn.base.errors import ArgumentError, NotDifferentiableError
from backburn.base.trees import flatten, unflatten
from backburn.tensor.classes import DIFFERENTIABLE, FloatTensor
from backburn.tensor.core.defaults import default_backend
from backburn.tensor.core.dispatch import call, create
from backburn.tensor.core.invalidation import ARGUMENT, invalidate
from backburn.tensor.core.levels import common_backend, innermost, levels_between, lift
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import integer, one_of
from backburn.tensor.core.wrapping import tensor_of
from backburn.tensor.generators import Draws
from backburn.transforms.batching import vmap
from backburn.transforms.derivatives import (
    Function,
    check_pairs,
    grad,
    jvp,
    make_pullback,
    positions,
    select_arguments,
    with_aux,
    zeros_like,
)
from backburn.transforms.equal_values import decompositions, some_are_equal
from backburn.transforms.levels import check_function, float_leaves, is_no_float, sync_module_state

#: The most cotangents or tangents that are propagated together, and the most elements that they have.
AT_ONCE, ELEMENTS = 256, 1 << 26


def jacobian(
    f: Function,
    argnums: int | tuple[int, ...] = 0,
    *,
    mode: str = "reverse",
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Function:
    """A function that returns the Jacobian of ``f`` with respect to the arguments ``argnums``.

    For a tensor argument and a tensor result it is a tensor of the result's shape followed by the argument's. For a
    tree of arguments (or a tuple ``argnums``) it is a tree of tensors, and for a tree of results a tree of those. Rows
    of a complex argument are gradients, ``dL/dx + i dL/dy``; the columns of a complex result are its derivatives, in
    both modes. Raises :class:`NotDifferentiableError` if both are complex. ``mode`` is ``"reverse"``, a cotangent for
    each element of the result, or ``"forward"``, a tangent for each element of the arguments; either way they are
    propagated together (:func:`vmap`), in chunks of ``chunk_size``, by default a few hundred. With ``has_aux`` ``f``
    returns a pair of its value and auxiliary data, and the function a pair of the Jacobian and the auxiliary data.

        >>> import backburn as bb
        >>> jacobian(lambda x: x * x)(bb.asarray([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    one_of("jacobian", "mode", mode, ("reverse", "forward"))
    numbers, chunk_size = positions("jacobian", argnums), _checked_size("jacobian", chunk_size)
    check_function("jacobian", f)

    @functools.wraps(f)
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        several = isinstance(argnums, (tuple, list))
        return _derivative("jacobian", f, numbers, args, kwargs, several, mode, has_aux, chunk_size)

    return jacobian_of


def _checked_size(name: str, chunk_size: int | None) -> int | None:
    return None if chunk_size is None else integer(name, "chunk_size", chunk_size, least=1)


def hessian(
    f: Function, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Function:
    """A function that returns the Hessian of ``f``, which returns a float scalar, with respect to ``argnums``.

    Forward over reverse: the columns are the tangents of the gradient. For a tree of arguments it is a tree of trees.
    ``has_aux`` and ``chunk_size`` are those of :func:`jacobian`.

        >>> import backburn as bb
        >>> hessian(lambda x: (x * x * x).sum())(bb.asarray([1.0, 2.0])).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """
    numbers, chunk_size = positions("hessian", argnums), _checked_size("hessian", chunk_size)
    check_function("hessian", f)
    gradient = grad(f, argnums, has_aux=has_aux)

    @functools.wraps(f)
    def hessian_of(*args: Any, **kwargs: Any) -> Any:
        several = isinstance(argnums, (tuple, list))
        return _derivative("hessian", gradient, numbers, args, kwargs, several, "forward", has_aux, chunk_size)

    return hessian_of


def hvp(f: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The Hessian of ``f(*primals)`` times ``tangents``, without forming it; a tuple like ``primals``.

    Forward over reverse: the tangent of the gradient. (Pearlmutter, Fast exact multiplication by the Hessian, 1994)

        >>> import backburn as bb
        >>> x, v = bb.asarray([1.0, 2.0]), bb.asarray([1.0, 1.0])
        >>> hvp(lambda x: (x * x * x).sum(), (x,), (v,))[0].tolist()
        [6.0, 12.0]
    """
    check_pairs("hvp", primals, tangents)
    if not primals:
        raise ArgumentError("hvp: there are no arguments to differentiate with respect to")
    return jvp(grad(f, tuple(range(len(primals)))), primals, tangents)[1]


def _derivative(
    name: str,
    f: Function,
    numbers: tuple[int, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    several: bool,
    mode: str,
    has_aux: bool,
    chunk_size: int | None,
) -> Any:
    """The derivative of ``f`` with respect to its arguments ``numbers``; a tuple where ``several`` were asked for."""
    selected, primals = select_arguments(name, f, numbers, args, kwargs)
    leaves, structure = float_leaves(name, tuple(primals))
    valued, aux = with_aux(name, selected, has_aux)
    made = _Derivative(name, valued, tuple(primals), leaves, structure, chunk_size)
    rest = list(aux)
    # Rows of reverse mode would be NaN at equal eigenvalues, where forward mode has a line to follow.
    by_rows = made.has_complex_leaves or (mode == "reverse" and not made.has_equal_values and not made.is_complex)
    trees = [unflatten(structure, row) for row in (made.by_rows() if by_rows else made.by_columns())]
    found = unflatten(made.out_structure, trees if several else [t[0] for t in trees])
    return (found, rest[0]) if has_aux else found


class _Derivative:
    """The derivative of ``f`` at the leaves of ``primals``: for each tensor of the result, a block for each leaf.

    Every run of ``f`` begins with the same random state and with copies of ``primals``; updates of modules are taken
    from the first run.
    """

    def __init__(
        self,
        name: str,
        f: Function,
        primals: tuple[Any, ...],
        leaves: list[FloatTensor],
        structure: Any,
        chunk_size: int | None,
    ) -> None:
        self.f, self.leaves, self.structure, self.chunk_size = f, leaves, structure, chunk_size
        self.home = common_backend(name, leaves) if leaves else default_backend()
        self.draws = Draws()
        given = self.copies()
        decomposed: list[Any] = []
        with decompositions(decomposed):
            out = self.draws.first(functools.partial(f, *given))
        self.has_equal_values = bool(decomposed) and some_are_equal(decomposed)
        sync_module_state(primals, structure, given, leaves)
        self.outputs, self.out_structure = flatten(out, is_constant=is_no_float)
        for x in self.outputs:
            if not isinstance(x, DIFFERENTIABLE):
                raise ArgumentError(f"{name}: the function must return float tensors, not {type(x).__name__}")
        self.is_complex, self.has_complex_leaves = (
            any(x.dtype.kind == "complex" for x in tensors) for tensors in (self.outputs, leaves)
        )
        if self.is_complex and self.has_complex_leaves:
            raise NotDifferentiableError(
                f"{name}: a complex result of complex arguments has one derivative for each direction: bb.jvp has it, "
                f"and bb.jacobian of bb.view_as_real(...) of both has all. Arguments: {describe(leaves)}"
            )

    def copies(self) -> tuple[Any, ...]:
        """The arguments, with copies of their modules."""
        return unflatten(self.structure, self.leaves)

    def by_rows(self) -> list[list[Any]]:
        """The blocks by reverse mode: a cotangent for each element of the result."""
        zeros = [zeros_like(innermost(x.backend), x) for x in self.outputs]
        blocks = []
        for place, out in enumerate(self.outputs):

            def pulled(unit: Any, place: int = place) -> list[Any]:
                copies = self.copies()
                _, pullback, inputs = self.draws.again(lambda: make_pullback(self.f, copies))
                found = pullback(unflatten(self.out_structure, [*zeros[:place], unit, *zeros[place + 1 :]]))
                invalidate(inputs, ARGUMENT)
                return flatten(found, is_constant=is_no_float)[0]

            rows = _for_each_unit(pulled, zeros[place], self.leaves, self.home, self.chunk_size)
            blocks.append([self.block(r, out.shape + x.shape) for r, x in zip(rows, self.leaves, strict=True)])
        return blocks

    def by_columns(self) -> list[list[Any]]:
        """The blocks by forward mode: a tangent for each element of the leaves."""
        zeros = [zeros_like(innermost(x.backend), x) for x in self.leaves]
        by_leaf = []
        for place, leaf in enumerate(self.leaves):

            def pushed(unit: Any, place: int = place) -> list[Any]:
                tangents = unflatten(self.structure, [*zeros[:place], unit, *zeros[place + 1 :]])
                copies = self.copies()
                moved = self.draws.again(lambda: jvp(self.f, copies, tangents)[1])
                return flatten(moved, is_constant=is_no_float)[0]

            columns = _for_each_unit(pushed, zeros[place], self.outputs, self.home, self.chunk_size)
            turned = [c.backend.permute_dims(c.primitive, (*range(1, c.ndim), 0)) for c in columns]
            column_tensors = [tensor_of(t, c.backend, c.dtype) for t, c in zip(turned, columns, strict=True)]
            shapes = [out.shape + leaf.shape for out in self.outputs]
            by_leaf.append([self.block(c, shape) for c, shape in zip(column_tensors, shapes, strict=True)])
        return [[column[i] for column in by_leaf] for i in range(len(self.outputs))]

    def block(self, x: Any, shape: tuple[int, ...]) -> Any:
        """``x`` in another shape, on the level of the arguments or where its history is."""
        found = tensor_of(x.backend.reshape(x.primitive, shape), x.backend, x.dtype)
        home = self.leaves[0].backend
        return found if levels_between(found.backend, home) is None else tensor_of(lift(found, home), home, x.dtype)


def _for_each_unit(
    function: Any, zero: FloatTensor, results: list[FloatTensor], home: Any, chunk_size: int | None
) -> list[Any]:
    """The stacked results of ``function``, tensors like ``results``, for each tensor like ``zero`` with a single 1.

    It runs above ``home``, the level of what it captures.
    """
    k: Any = zero.backend
    count = zero.size
    if not count:
        return [tensor_of(x.backend.zeros((0, *x.shape), x.dtype), x.backend, x.dtype) for x in results]
    # Allocate the memory of all results first: if there is too little, say so before hours of work.
    create("empty", k, shape=(count, sum(x.size for x in results)), dtype=zero.dtype)
    together = max(1, min(AT_ONCE, ELEMENTS // count)) if chunk_size is None else chunk_size
    mapped = vmap(function, randomness="same", on_fallback="allow")
    parts = []
    for start in range(0, count, together):
        rows = min(together, count - start)
        units = create("eye", k, n=rows, m=count, offset=start, dtype=zero.dtype)
        units = call("reshape", units, shape=(rows, *zero.shape))
        parts.append(mapped(tensor_of(lift(units, home), home, units.dtype)))
    return [_concat(list(column)) for column in zip(*parts, strict=True)]


def _concat(parts: list[Any]) -> Any:
    """Tensors on one level, concatenated along their first axis."""
    return parts[0] if len(parts) == 1 else call("concat", parts, axis=0)
