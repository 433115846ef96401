"""Derivatives of functions, made of ``vjp``, on a level of ``Autodiff``, and ``jvp``, on one of ``Forward``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from backburn.autodiff import Autodiff, Dual, Forward
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.base.trees import flatten, flatten_like, unflatten
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import describe, lift
from backburn.transforms.levels import (
    as_recorded,
    check_leaves_are_ours,
    float_leaves,
    level_below,
    lowered,
    onto,
    running,
    scalar_output,
    variables,
)

Function = Callable[..., Any]


def vjp(f: Function, *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """``f(*primals)``, and the function that takes a cotangent of it to the cotangents of ``primals``.

    ``primals`` are trees of float tensors; the result may be a tree too. The returned function may be called any
    number of times; it takes a tree like the result and returns a tuple like ``primals``, each gradient in the shape
    and dtype of its primal. Raises :class:`NotDifferentiableError` for primals that are not floats and
    :class:`ShapeError` for a cotangent of the wrong shape.

        >>> import backburn as bb
        >>> y, pullback = vjp(lambda x: x * x, bb.asarray([1.0, 2.0]))
        >>> pullback(bb.asarray([1.0, 10.0]))[0].tolist()
        [2.0, 40.0]
    """
    leaves, structure = float_leaves("vjp", primals)
    below = level_below("vjp", leaves)
    outer = Autodiff(below)
    inputs = variables(outer, leaves)
    with running(outer):
        out = f(*unflatten(structure, inputs))
    outputs, out_structure = flatten(out)
    home = [x.backend for x in leaves]

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        given = flatten_like(out_structure, cotangent, "vjp")
        gradients = _pull(outer, outputs, given, inputs)
        moved = [lowered(as_recorded(g), k) for g, k in zip(gradients, home, strict=True)]
        result: tuple[Any, ...] = unflatten(structure, moved)
        return result

    value = unflatten(out_structure, [_value(outer, x, home[0] if home else below) for x in outputs])
    return value, pullback


def _value(outer: Any, x: Any, home: Any) -> Any:
    """An output of the function as its caller sees it."""
    if isinstance(x, Tensor) and x.backend is outer:
        x = x.inner()
    return lowered(as_recorded(x), home)


def _pull(outer: Autodiff[Any], outputs: list[Any], cotangents: list[Any], inputs: list[Any]) -> list[Any]:
    """The gradients of the inputs, on the level below ``outer``, for cotangents of the outputs."""
    below: Any = outer.inner_backend
    total: Any = None
    for x, c in zip(outputs, cotangents, strict=True):
        if not isinstance(x, FloatTensor) or x.backend is not outer or not x.is_tracked:
            continue
        weight = outer.from_inner(onto("vjp", "cotangent", _like("vjp", "cotangent", x.inner(), c), below))
        term = outer.sum(outer.mul(x.primitive, weight), tuple(range(x.ndim)), False)
        total = term if total is None else outer.add(total, outer.cast(term, outer.dtype(total)))
    found: Any = None
    if total is not None:
        found = outer.backward(total, retain_graph=True)
        check_leaves_are_ours("vjp", outer, found, inputs)
    result = []
    for x in inputs:
        g = outer.grad(x.primitive, found) if total is not None else None
        result.append(FloatTensor(below.zeros(x.shape, x.dtype) if g is None else g, below, x.dtype))
    return result


def value_and_grad(f: Function, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False) -> Function:
    """A function that returns ``f(...)`` and its gradient with respect to the arguments ``argnums``.

    ``f`` returns a float scalar (with ``has_aux`` a pair of it and anything else, which is passed on). The gradient
    has the structure of the argument; for a tuple of ``argnums`` it is a tuple.

        >>> import backburn as bb
        >>> value, gradient = value_and_grad(lambda x: (x ** 3.0).sum())(bb.asarray([1.0, 2.0]))
        >>> value.item(), gradient.tolist()
        (9.0, [3.0, 12.0])
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(f)
    def differentiated(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if not numbers or not all(-len(args) <= n < len(args) for n in numbers):
            raise ArgumentError(f"grad: argnums {argnums!r} name positional arguments, and there are {len(args)}")
        aux: list[Any] = []

        def of_chosen(*chosen: Any) -> Any:
            full = list(args)
            for n, value in zip(numbers, chosen, strict=True):
                full[n] = value
            out = f(*full, **kwargs)
            if has_aux:
                out, extra = out
                aux.append(extra)
            return scalar_output("grad", out)

        value, pullback = vjp(of_chosen, *(args[n] for n in numbers))
        gradients = pullback(1.0)
        gradient = gradients[0] if isinstance(argnums, int) else gradients
        return ((value, aux[0]) if has_aux else value), gradient

    return differentiated


def grad(f: Function, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False) -> Function:
    """A function that returns the gradient of ``f``, which returns a float scalar; see :func:`value_and_grad`.

    With ``has_aux`` it returns the gradient and what else ``f`` returned.

        >>> import backburn as bb
        >>> f = lambda x: x ** 3.0
        >>> grad(f)(2.0).item(), grad(grad(f))(2.0).item(), grad(grad(grad(f)))(2.0).item()
        (12.0, 12.0, 6.0)
    """
    both = value_and_grad(f, argnums, has_aux=has_aux)

    @functools.wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def linearize(f: Function, *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``f(*primals)``, and the linear function of tangents that approximates it there.

    The function is run once; the returned one takes a tree like each primal and returns a tree like the result. It
    transposes the reverse pass: ``J t`` is the derivative of ``u -> t . (J' u)``, which is linear in ``u``.

        >>> import backburn as bb
        >>> y, tangent_map = linearize(lambda x: x * x, bb.asarray([1.0, 2.0]))
        >>> tangent_map(bb.asarray([1.0, 1.0])).tolist()
        [2.0, 4.0]
    """
    leaves, structure = float_leaves("jvp", primals)
    below = level_below("jvp", leaves)
    middle = Autodiff(below)
    home = leaves[0].backend if leaves else below
    with running(middle):
        out, pullback = vjp(f, *primals)
        outputs, out_structure = flatten(out)
        floats = [x for x in outputs if isinstance(x, FloatTensor)]
        start = variables(middle, [_zeros(below, x) for x in floats])
        remaining = iter(start)
        cotangent = unflatten(out_structure, [next(remaining) if isinstance(x, FloatTensor) else x for x in outputs])
        pulled, _ = flatten(pullback(cotangent))

    def tangent_map(*tangents: Any) -> Any:
        given = flatten_like(structure, tangents, "jvp")
        given = [_like("jvp", "tangent", x, t) for x, t in zip(leaves, given, strict=True)]
        found = iter(_pull(middle, pulled, given, start))
        moved = [lowered(next(found), home) if isinstance(x, FloatTensor) else x for x in outputs]
        return unflatten(out_structure, moved)

    return unflatten(out_structure, [_value(middle, x, home) for x in outputs]), tangent_map


def _zeros(below: Any, x: FloatTensor) -> FloatTensor:
    """Zeros of a tensor's shape and dtype on the level ``below``."""
    return FloatTensor(below.zeros(x.shape, x.dtype), below, x.dtype)


def jvp(f: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """``f(*primals)`` and its derivative along ``tangents``, which are like ``primals``.

    The function is run once, on dual numbers (:class:`backburn.autodiff.Forward`): nothing is recorded, and the cost
    is a small constant times the function's, whatever the number of inputs. What ``f`` returns besides float tensors
    stands in the tangent as it is.

        >>> import backburn as bb
        >>> jvp(lambda x: x * x, (bb.asarray(3.0),), (bb.asarray(1.0),))[1].item()
        6.0
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise ArgumentError("jvp: primals and tangents are tuples with one entry for each argument: jvp(f, (x,), (t,))")
    if len(primals) != len(tangents):
        raise ArgumentError(f"jvp: {len(primals)} primals and {len(tangents)} tangents")
    leaves, structure = float_leaves("jvp", primals)
    moves = flatten_like(structure, tangents, "jvp")
    given = [_like("jvp", "tangent", x, t) for x, t in zip(leaves, moves, strict=True)]
    below = level_below("jvp", [*leaves, *given])
    level = Forward.level(below)
    home = leaves[0].backend if leaves else below
    duals = [Dual(lift(x, below), lift(t, below)) for x, t in zip(leaves, given, strict=True)]
    with running(level):
        out = f(*unflatten(structure, [FloatTensor(d, level, x.dtype) for d, x in zip(duals, leaves, strict=True)]))
    outputs, out_structure = flatten(out)
    moved = [lowered(as_recorded(_tangent(level, x)), home) for x in outputs]
    return unflatten(out_structure, [_value(level, x, home) for x in outputs]), unflatten(out_structure, moved)


def _tangent(level: Forward[Any], x: Any) -> Any:
    """The tangent of an output of a function that was run on ``level``; zeros for a constant."""
    if not isinstance(x, FloatTensor):
        return x
    below = level.inner_backend if x.backend is level else x.backend
    found = x.primitive.tangent if x.backend is level else None
    return _zeros(below, x) if found is None else FloatTensor(found, below, x.dtype)


def _like(name: str, what: str, x: FloatTensor, t: Any) -> FloatTensor:
    """A tangent or cotangent of ``x``, which may be a number for all elements; what is of another kind is refused."""
    if isinstance(t, (int, float)):
        return FloatTensor(x.backend.full(x.shape, float(t), x.dtype), x.backend, x.dtype)
    if not isinstance(t, Tensor):
        raise DTypeError(f"{name}: the {what} of {describe((x,))} is a tensor or a number, not {type(t).__name__}")
    if t.shape != x.shape or t.dtype is not x.dtype:
        raise ShapeError(f"{name}: the {what} {describe((t,))} is not like {describe((x,))}")
    return t  # type: ignore[return-value]


def jacobian(f: Function, argnums: int = 0, *, mode: str = "reverse") -> Function:
    """A function that returns the Jacobian of ``f`` with respect to one argument.

    ``f`` returns one float tensor; the argument is a tree, and each of its leaves gives a tensor of the output's shape
    followed by its own. ``mode`` is ``"reverse"``, one reverse pass for each output element, or ``"forward"``, one
    tangent for each input element.

        >>> import backburn as bb
        >>> jacobian(lambda x: x * x)(bb.asarray([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    if mode not in ("reverse", "forward"):
        raise ArgumentError(f"jacobian: mode is 'reverse' or 'forward', not {mode!r}")

    @functools.wraps(f)
    def of_args(*args: Any, **kwargs: Any) -> Any:
        def of_one(x: Any) -> Any:
            full = list(args)
            full[argnums] = x
            return f(*full, **kwargs)

        return (_by_rows if mode == "reverse" else _by_columns)(of_one, args[argnums])

    return of_args


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


def _stacked(parts: list[Any], shape: tuple[int, ...]) -> Any:
    """Tensors of one shape on one level, stacked and reshaped."""
    k: Any = parts[0].backend
    primitive = k.concat([k.reshape(p.primitive, (1, p.size)) for p in parts], 0)
    return FloatTensor(k.reshape(primitive, shape), k, parts[0].dtype)


def _by_rows(f: Function, x: Any) -> Any:
    out, pullback = vjp(f, x)
    if not isinstance(out, FloatTensor):
        raise ArgumentError(f"jacobian: the function must return one float tensor, not {type(out).__name__}")
    leaves, structure = float_leaves("jacobian", x)
    if not out.size:
        return unflatten(structure, [_stack_of_none(leaf, out.shape + leaf.shape) for leaf in leaves])
    rows = [flatten(pullback(c)[0])[0] for c in _basis(_constant_like(out))]
    columns = zip(*rows, strict=True)
    return unflatten(
        structure, [_stacked(list(c), out.shape + leaf.shape) for c, leaf in zip(columns, leaves, strict=True)]
    )


def _by_columns(f: Function, x: Any) -> Any:
    leaves, structure = float_leaves("jacobian", x)
    out, tangent_map = linearize(f, x)
    if not isinstance(out, FloatTensor):
        raise ArgumentError(f"jacobian: the function must return one float tensor, not {type(out).__name__}")
    zeros = [_constant_like(leaf) for leaf in leaves]
    result = []
    for place, leaf in enumerate(leaves):
        columns = []
        for direction in _basis(zeros[place]):
            tangents = [*zeros[:place], direction, *zeros[place + 1 :]]
            columns.append(tangent_map(unflatten(structure, tangents)))
        if not columns:
            result.append(_stack_of_none(leaf, out.shape + leaf.shape))
            continue
        k: Any = columns[0].backend
        by_input = _stacked(columns, (leaf.size, out.size))
        primitive = k.reshape(k.permute_dims(by_input.primitive, (1, 0)), out.shape + leaf.shape)
        result.append(FloatTensor(primitive, k, out.dtype))
    return unflatten(structure, result)


def _stack_of_none(like: FloatTensor, shape: tuple[int, ...]) -> FloatTensor:
    k: Any = like.backend
    return FloatTensor(k.zeros(shape, like.dtype), k, like.dtype)


def hessian(f: Function, argnums: int = 0) -> Function:
    """A function that returns the Hessian of ``f``, which returns a float scalar, for one tensor argument.

    >>> import backburn as bb
    >>> hessian(lambda x: (x * x * x).sum())(bb.asarray([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacobian(grad(f, argnums), argnums)


def hvp(f: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The Hessian of ``f(*primals)`` times ``tangents``, without forming it; a tuple like ``primals``.

    >>> import backburn as bb
    >>> x, v = bb.asarray([1.0, 2.0]), bb.asarray([1.0, 1.0])
    >>> hvp(lambda x: (x * x * x).sum(), (x,), (v,))[0].tolist()
    [6.0, 12.0]
    """
    positions = tuple(range(len(primals)))
    _, pullback = vjp(grad(f, positions), *primals)
    return pullback(tuple(tangents))
