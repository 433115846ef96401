"""Jacobians and Hessians, row by row or column by column."""

from __future__ import annotations

import functools
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.base.trees import flatten, unflatten
from backburn.tensor.classes import FloatTensor
from backburn.transforms.derivatives import Function, check_pairs, grad, jvp, linearize, of_chosen, positions, vjp
from backburn.transforms.levels import check_function, float_leaves


def jacobian(f: Function, argnums: int | tuple[int, ...] = 0, *, mode: str = "reverse") -> Function:
    """A function that returns the Jacobian of ``f`` with respect to the arguments ``argnums``.

    For a tensor argument and a tensor result it is a tensor of the result's shape followed by the argument's. Where
    the argument is a tree (or ``argnums`` a tuple), there is such a tree of tensors, and where the result is one, such
    a tree of what there is for each of its tensors. ``mode`` is ``"reverse"``, one reverse pass for each element of the
    result, or ``"forward"``, one tangent for each element of the arguments; either runs ``f`` once.

        >>> import backburn as bb
        >>> jacobian(lambda x: x * x)(bb.asarray([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    return _jacobian("jacobian", f, argnums, mode)


def hessian(f: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """A function that returns the Hessian of ``f``, which returns a float scalar, with respect to ``argnums``.

    Forward over reverse: the columns are the tangents of the gradient. For a tree of arguments it is a tree of trees.

        >>> import backburn as bb
        >>> hessian(lambda x: (x * x * x).sum())(bb.asarray([1.0, 2.0])).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """
    return _jacobian("hessian", grad(f, argnums), argnums, "forward")


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
        raise ArgumentError("hvp: there is no argument to differentiate for")
    moved: tuple[Any, ...] = jvp(grad(f, tuple(range(len(primals)))), primals, tangents)[1]
    return moved


def _jacobian(name: str, f: Function, argnums: int | tuple[int, ...], mode: str) -> Function:
    if mode not in ("reverse", "forward"):
        raise ArgumentError(f"{name}: mode is 'reverse' or 'forward', not {mode!r}")
    check_function(name, f)
    numbers = positions(name, argnums)

    @functools.wraps(f)
    def of_args(*args: Any, **kwargs: Any) -> Any:
        of_numbered, primals = of_chosen(name, f, numbers, args, kwargs)
        leaves, structure = float_leaves(name, tuple(primals))
        out, blocks = (_by_rows if mode == "reverse" else _by_columns)(name, of_numbered, primals, leaves, structure)
        trees = [unflatten(structure, row) for row in blocks]
        return unflatten(out, trees if isinstance(argnums, (tuple, list)) else [tree[0] for tree in trees])

    return of_args


def _by_rows(name: str, f: Function, primals: list[Any], leaves: list[FloatTensor], structure: Any) -> Any:
    """The structure of the result, and for each of its tensors the blocks for each leaf: a cotangent at a time."""
    value, pullback = vjp(f, *primals)
    outputs, out_structure = _outputs(name, value)
    zeros = [_constant_like(x) for x in outputs]
    blocks = []
    for place, out in enumerate(outputs):
        rows = [
            flatten(pullback(unflatten(out_structure, [*zeros[:place], unit, *zeros[place + 1 :]])))[0]
            for unit in _basis(zeros[place])
        ]
        blocks.append([_stacked([row[i] for row in rows], x, out.shape + x.shape) for i, x in enumerate(leaves)])
    return out_structure, blocks


def _by_columns(name: str, f: Function, primals: list[Any], leaves: list[FloatTensor], structure: Any) -> Any:
    """As :func:`_by_rows`, a tangent at a time."""
    value, tangent_map = linearize(f, *primals)
    outputs, out_structure = _outputs(name, value)
    zeros = [_constant_like(x) for x in leaves]
    by_leaf = []
    for place, leaf in enumerate(leaves):
        columns = [
            flatten(tangent_map(*unflatten(structure, [*zeros[:place], unit, *zeros[place + 1 :]])))[0]
            for unit in _basis(zeros[place])
        ]
        by_leaf.append([
            _last(_stacked([column[i] for column in columns], out, leaf.shape + out.shape), leaf.ndim)
            for i, out in enumerate(outputs)
        ])
    return out_structure, [list(row) for row in zip(*by_leaf, strict=True)] if leaves else [[] for _ in outputs]


def _outputs(name: str, value: Any) -> tuple[list[FloatTensor], Any]:
    """The tensors of a result and its structure; what is no float tensor has no derivative."""
    outputs, structure = flatten(value)
    for x in outputs:
        if not isinstance(x, FloatTensor):
            raise ArgumentError(f"{name}: the function must return float tensors, not {type(x).__name__}")
    return outputs, structure


def _basis(like: FloatTensor) -> list[FloatTensor]:
    """One tensor like ``like`` for each of its elements, 1 there and 0 elsewhere."""
    k: Any = like.backend
    n = like.size
    rows = k.eye(n, n, 0, like.dtype)
    lines = (k.slice(rows, (slice(i, i + 1), slice(None))) for i in range(n))
    return [FloatTensor(k.reshape(line, like.shape), k, like.dtype) for line in lines]


def _constant_like(x: FloatTensor) -> FloatTensor:
    """An untracked tensor of the base level with the shape and dtype of ``x``."""
    k: Any = x.backend
    while hasattr(k, "inner_backend"):
        k = k.inner_backend
    return FloatTensor(k.zeros(x.shape, x.dtype), k, x.dtype)


def _stacked(parts: list[Any], like: FloatTensor, shape: tuple[int, ...]) -> Any:
    """Tensors like ``like`` on one level, stacked and reshaped; there may be none."""
    if not parts:
        k: Any = like.backend
        return FloatTensor(k.zeros(shape, like.dtype), k, like.dtype)
    k = parts[0].backend
    primitive = k.concat([k.reshape(p.primitive, (1, p.size)) for p in parts], 0)
    return FloatTensor(k.reshape(primitive, shape), k, parts[0].dtype)


def _last(x: Any, count: int) -> Any:
    """``x`` with its first ``count`` axes moved to the end."""
    k: Any = x.backend
    order = (*range(count, x.ndim), *range(count))
    return FloatTensor(k.permute_dims(x.primitive, order), k, x.dtype)
