"""Derivatives of functions: ``vjp`` on a level of ``Autodiff``, ``jvp`` on one of ``Forward``, and others."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from operator import index
from typing import Any, Literal, overload

from backburn.autodiff import Autodiff, Dual, Forward
from backburn.autodiff.anomaly import unwatched
from backburn.autodiff.graph import Node, outputs_node, reverse
from backburn.base.errors import (
    ArgumentError,
    ConsumedGraphError,
    DTypeError,
    NumericalInstabilityError,
    ShapeError,
)
from backburn.base.trees import flatten, flatten_like, tree_map, unflatten
from backburn.tensor.classes import DIFFERENTIABLE, FloatTensor, Tensor
from backburn.tensor.core.dispatch import fit
from backburn.tensor.core.host import has_nan
from backburn.tensor.core.invalidation import ARGUMENT, invalidate
from backburn.tensor.core.levels import common_backend, lift
from backburn.tensor.core.messages import describe, raise_out_of_memory
from backburn.tensor.core.wrapping import tensor_of
from backburn.tensor.generators import Draws
from backburn.tensor.gradients import conjugate
from backburn.transforms.equal_values import decompositions, repaired_gradients, repaired_tangents, some_are_equal
from backburn.transforms.levels import (
    as_output,
    as_recorded,
    check_function,
    check_leaves_are_ours,
    float_leaves,
    foreign_graph_error,
    is_no_float,
    level_below,
    lift_nodes,
    lower,
    scalar_output,
    sync_module_state,
    to_level,
    transform_scope,
    variables,
)

Function = Callable[..., Any]
Pullback = Callable[[Any], tuple[Any, ...]]


@overload
def vjp(f: Function, *primals: Any, has_aux: Literal[False] = False) -> tuple[Any, Pullback]: ...
@overload
def vjp(f: Function, *primals: Any, has_aux: Literal[True]) -> tuple[Any, Pullback, Any]: ...
def vjp(f: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """``f(*primals)``, and the function that maps a cotangent of it to the cotangents of ``primals``.

    ``primals`` are trees of float tensors; the result may be a tree too. The returned function may be called any number
    of times; it takes a tree like the result and returns a tuple like ``primals``, each gradient in the shape and dtype
    of its primal. With ``has_aux`` ``f`` returns a pair of its value and auxiliary data, which is the third result,
    with tensors in it as constants to this derivative, though not to others around it. The cotangent ``v`` of a complex
    result gives the gradient of the real part of ``sum(conj(v) * f)``, ``dL/dx + i dL/dy`` for each ``x + iy``. Raises
    :class:`NotDifferentiableError` for primals that are not floats and :class:`ShapeError` for a cotangent of the wrong
    shape.

        >>> import backburn as bb
        >>> y, pullback = vjp(lambda x: x * x, bb.asarray([1.0, 2.0]))
        >>> pullback(bb.asarray([1.0, 10.0]))[0].tolist()
        [2.0, 40.0]
    """
    check_function("vjp", f)
    valued, aux = with_aux("vjp", f, has_aux)
    value, pullback, _ = make_pullback(valued, primals, aux)
    return (value, pullback, aux[0]) if has_aux else (value, pullback)


def with_aux(name: str, f: Function, has_aux: bool) -> tuple[Function, list[Any]]:
    """``f`` without its auxiliary data, which the list holds after a call; ``f`` itself if there is none."""
    aux: list[Any] = []
    if not has_aux:
        return f, aux

    @functools.wraps(f)
    def valued(*args: Any, **kwargs: Any) -> Any:
        out = f(*args, **kwargs)
        if not isinstance(out, tuple) or len(out) != 2:
            raise ArgumentError(f"{name}: with has_aux=True the function returns a pair, its value and the rest")
        aux[:] = [out[1]]
        return out[0]

    return valued, aux


def export_aux(aux: Any, below: Any, home: Any) -> Any:
    """Auxiliary data taken down to the level ``below``, and further to ``home`` if they are constants."""
    return tree_map(lambda x: as_recorded(lower(to_level(x, below), home)), aux)


def make_pullback(
    f: Function, primals: tuple[Any, ...], aux: list[Any] | None = None, once: bool = False
) -> tuple[Any, Pullback, list[FloatTensor]]:
    """The value and the pullback of :func:`vjp`, and the tensors valid only in ``f``; ``aux`` is exported in place.

    With ``once`` the pullback may be called only once, and releases saved values as it runs.
    """
    leaves, structure = float_leaves("vjp", primals)
    below = level_below("vjp", leaves)
    outer = Autodiff(below)
    inputs = variables(outer, leaves)
    nodes = [x.primitive.node for x in inputs]
    given, draws = unflatten(structure, inputs), Draws()
    decomposed: list[Any] = []
    with transform_scope(outer) as retained, decompositions(decomposed):
        out = draws.first(lambda: f(*given))
    sync_module_state(primals, structure, given, inputs)
    outputs, out_structure = flatten(out)
    outputs = [as_output("vjp", x, outer) for x in outputs]
    home = [x.backend for x in leaves]

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        given = flatten_like(out_structure, cotangent, "vjp")
        keep = not once or bool(retained)
        if decomposed and some_are_equal(decomposed):
            gradients = _pull_back_equal(outer, outputs, given, nodes, leaves, keep, repair)
        else:
            gradients = _pull_back(outer, outputs, given, nodes, leaves, retain_graph=keep)
        moved = [lower(as_recorded(g), k) for g, k in zip(gradients, home, strict=True)]
        return unflatten(structure, moved)

    def repair(cotangents: list[Any], gradients: list[Any]) -> list[Any]:
        floats = [(x, c) for x, c in zip(outputs, cotangents, strict=True) if isinstance(x, DIFFERENTIABLE)]
        values = [lower(x.inner() if x.backend is outer else x, below) for x, _ in floats]
        moved = [lower(_like("vjp", "cotangent", v, c), below) for v, (_, c) in zip(values, floats, strict=True)]
        kept = list(aux or ())
        found = repaired_gradients(f, draws, structure, leaves, below, decomposed, values, moved, gradients)
        if aux is not None:
            aux[:] = kept  # of the first run
        return found

    target = home[0] if home else below
    value = unflatten(out_structure, [_value(outer, x, target) for x in outputs])
    if aux:
        aux[0] = export_aux(aux[0], below, target)
    return value, pullback, [] if retained else inputs


def _value(outer: Any, x: Any, home: Any) -> Any:
    """An output of the function as its caller sees it."""
    if isinstance(x, Tensor) and x.backend is outer:
        x = x.inner()
    return lower(as_recorded(x), home)


def _pull_back(
    outer: Autodiff[Any],
    outputs: list[Any],
    cotangents: list[Any],
    inputs: list[Node],
    like: list[FloatTensor],
    retain_graph: bool = True,
) -> list[Any]:
    """The gradients of the ``inputs``, which are like the tensors ``like``, for cotangents of the outputs.

    They are on the level of the cotangents, or that below ``outer``.
    """
    below: Any = outer.inner_backend
    tracked = [
        (x.primitive.node, x.inner(), c)
        for x, c in zip(outputs, cotangents, strict=True)
        if isinstance(x, DIFFERENTIABLE) and x.backend is outer and x.is_tracked
    ]
    pairs = [(x, lower(_like("vjp", "cotangent", x, c), below)) for _, x, c in tracked]
    # The pass runs on the level of the highest cotangent (of vmap, say), on which saved values are constants.
    k: Any = common_backend("vjp", [t for pair in pairs for t in pair]) if pairs else below
    found: dict[Node, Any] = {}
    if pairs:
        nodes = lift_nodes([node for node, *_ in tracked], below, k)
        root = outputs_node(nodes, [conjugate(k, lift(c, k), c.dtype) for _, c in pairs])
        try:
            found = reverse(k, root, None, retain_graph=retain_graph)
        except ConsumedGraphError:  # that of an earlier transform
            raise foreign_graph_error(outer) from None
        except MemoryError as error:
            raise_out_of_memory("vjp", f" Operands: {describe(like)}.", k.device, error)
        check_leaves_are_ours(outer, found, inputs)
    result = []
    for node, x in zip(inputs, like, strict=True):
        g = found.get(node)
        result.append(zeros_like(k, x) if g is None else tensor_of(conjugate(k, g, x.dtype), k, x.dtype))
    return result


def _pull_back_equal(
    outer: Autodiff[Any],
    outputs: list[Any],
    cotangents: list[Any],
    inputs: list[Node],
    like: list[FloatTensor],
    retain_graph: bool,
    repair: Callable[[list[Any], list[Any]], list[Any]],
) -> list[Any]:
    """:func:`_pull_back` where a decomposition has equal values, and its rules may give NaN."""
    failure = None
    try:
        pulled = _pull_back(outer, outputs, cotangents, inputs, like, retain_graph)
    except NumericalInstabilityError as error:  # of detect_anomaly, which looks at each rule alone
        pulled, failure = None, error
    k: Any = outer.inner_backend
    with unwatched():
        nothing = [tensor_of(k.full(x.shape, math.nan, x.dtype), k, x.dtype) for x in like]
        found = repair(cotangents, nothing if pulled is None else pulled)
    if failure is not None and any(map(has_nan, found)):
        raise failure
    return found


def positions(name: str, argnums: Any) -> tuple[int, ...]:
    """The positions that ``argnums`` names, an integer or several."""
    try:
        numbers = (index(argnums),) if not isinstance(argnums, (tuple, list)) else tuple(map(index, argnums))
    except TypeError:
        raise ArgumentError(f"{name}: argnums is an integer or a tuple of integers, not {argnums!r}") from None
    if not numbers:
        raise ArgumentError(f"{name}: argnums names no argument")
    return numbers


def select_arguments(
    name: str, f: Function, numbers: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Function, list[Any]]:
    """``f`` as a function of only its arguments ``numbers``, with the others as given; and those arguments."""
    indices = [n + len(args) if n < 0 else n for n in numbers]
    if not all(0 <= n < len(args) for n in indices) or len(set(indices)) < len(indices):
        named = ", ".join(map(str, numbers))
        by_name = f"; arguments by name ({', '.join(kwargs)}) are not differentiated" if kwargs else ""
        raise ArgumentError(
            f"{name}: argnums {named} must be distinct positions of arguments, of which {len(args)} were given by "
            f"position{by_name}"
        )

    def selected(*chosen: Any) -> Any:
        full = list(args)
        for n, value in zip(indices, chosen, strict=True):
            full[n] = value
        return f(*full, **kwargs)

    return selected, [args[n] for n in indices]


def value_and_grad(f: Function, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False) -> Function:
    """A function that returns ``f(...)`` and its gradient with respect to the arguments ``argnums``.

    ``f`` returns a float scalar, or with ``has_aux`` a pair of it and auxiliary data, which is passed on, with tensors
    in it as constants. The gradient has the structure of the argument; for a tuple of ``argnums`` it is a tuple.

        >>> import backburn as bb
        >>> value, gradient = value_and_grad(lambda x: (x ** 3.0).sum())(bb.asarray([1.0, 2.0]))
        >>> value.item(), gradient.tolist()
        (9.0, [3.0, 12.0])
    """
    check_function("grad", f)
    numbers = positions("grad", argnums)

    @functools.wraps(f)
    def differentiated(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        selected, primals = select_arguments("grad", f, numbers, args, kwargs)
        valued, aux = with_aux("grad", selected, has_aux)
        value, pullback, inputs = make_pullback(lambda *x: scalar_output(valued(*x)), tuple(primals), aux, once=True)
        gradients = pullback(1.0)
        gradient = gradients if isinstance(argnums, (tuple, list)) else gradients[0]
        invalidate(inputs, ARGUMENT)
        return ((value, aux[0]) if has_aux else value), gradient

    return differentiated


def grad(f: Function, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False) -> Function:
    """A function that returns the gradient of ``f``, which returns a float scalar; see :func:`value_and_grad`.

    With ``has_aux`` it returns the gradient and the auxiliary data.

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


@overload
def linearize(f: Function, *primals: Any, has_aux: Literal[False] = False) -> tuple[Any, Function]: ...
@overload
def linearize(f: Function, *primals: Any, has_aux: Literal[True]) -> tuple[Any, Function, Any]: ...
def linearize(f: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """``f(*primals)``, and the linear map that takes tangents of ``primals`` to the tangent of the result.

    ``f`` is run once, unless it decomposes a matrix with equal eigenvalues or singular values, for which each call runs
    it again; the returned function takes a tree like each primal and returns a tree like the result. With
    ``has_aux`` ``f`` returns a pair of its value and auxiliary data, which is the third result (see :func:`vjp`). It
    transposes the reverse pass: ``J t`` is the derivative of ``u -> t . (J' u)``, which is linear in ``u``.

        >>> import backburn as bb
        >>> y, tangent_map = linearize(lambda x: x * x, bb.asarray([1.0, 2.0]))
        >>> tangent_map(bb.asarray([1.0, 1.0])).tolist()
        [2.0, 4.0]
    """
    check_function("linearize", f)
    leaves, structure = float_leaves("linearize", primals)
    below = level_below("linearize", leaves)
    middle = Autodiff(below)
    home = leaves[0].backend if leaves else below
    draws = Draws()
    decomposed: list[Any] = []
    with transform_scope(middle):
        valued, aux = with_aux("linearize", f, has_aux)
        with decompositions(decomposed):
            out, pullback, _ = draws.first(lambda: make_pullback(valued, primals))
        outputs, out_structure = flatten(out)
        floats = [x for x in outputs if isinstance(x, DIFFERENTIABLE)]
        start = variables(middle, [zeros_like(below, x) for x in floats])
        remaining = iter(start)
        cotangent = unflatten(out_structure, [next(remaining) if isinstance(x, DIFFERENTIABLE) else x for x in outputs])
        pulled, _ = flatten(pullback(cotangent), is_constant=is_no_float)

    has_equal_values = bool(decomposed) and some_are_equal(decomposed)

    def tangent_map(*tangents: Any) -> Any:
        if has_equal_values:  # the reverse pass has no vectors along a line
            kept = list(aux)
            moved = draws.again(lambda: jvp(valued, primals, tangents)[1])
            aux[:] = kept
            return moved
        given = flatten_like(structure, tangents, "linearize", is_constant=is_no_float)
        given = [_like("linearize", "tangent", x, t) for x, t in zip(leaves, given, strict=True)]
        found = iter(_pull_back(middle, pulled, given, [x.primitive.node for x in start], start))
        moved = [
            lower(as_recorded(next(found)), home) if isinstance(x, DIFFERENTIABLE) else _other_tangent(x)
            for x in outputs
        ]
        return unflatten(out_structure, moved)

    value = unflatten(out_structure, [_value(middle, x, home) for x in outputs])
    return (value, tangent_map, export_aux(aux[0], below, home)) if has_aux else (value, tangent_map)


def zeros_like(k: Any, x: Any) -> Any:
    """Zeros of a tensor's shape and dtype on the level ``k``."""
    return tensor_of(k.zeros(x.shape, x.dtype), k, x.dtype)


@overload
def jvp(
    f: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...], *, has_aux: Literal[False] = False
) -> tuple[Any, Any]: ...
@overload
def jvp(
    f: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...], *, has_aux: Literal[True]
) -> tuple[Any, Any, Any]: ...
def jvp(f: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...], *, has_aux: bool = False) -> tuple[Any, ...]:
    """``f(*primals)`` and its directional derivative along ``tangents``, which are like ``primals``.

    The function is run once, on dual numbers (:class:`backburn.autodiff.Forward`): nothing is recorded, and the cost is
    a small multiple of the function's, whatever the number of inputs. A Python float in the result has the tangent 0.0;
    anything else but float tensors is returned unchanged in the tangent. With ``has_aux`` ``f`` returns a pair of its
    value and auxiliary data, which is the third result (see :func:`vjp`).

        >>> import backburn as bb
        >>> jvp(lambda x: x * x, (bb.asarray(3.0),), (bb.asarray(1.0),))[1].item()
        6.0
    """
    check_function("jvp", f)
    check_pairs("jvp", primals, tangents)
    leaves, structure = float_leaves("jvp", primals)
    moves = flatten_like(structure, tangents, "jvp", is_constant=is_no_float)
    given = [_like("jvp", "tangent", x, t) for x, t in zip(leaves, moves, strict=True)]
    below = level_below("jvp", [*leaves, *given])
    level = Forward.level(below)
    home = leaves[0].backend if leaves else below
    duals: list[Dual[Any]] = [Dual(lift(x, below), lift(t, below)) for x, t in zip(leaves, given, strict=True)]
    draws = Draws()
    decomposed: list[Any] = []
    with transform_scope(level) as retained, decompositions(decomposed):
        inputs = [tensor_of(d, level, x.dtype) for d, x in zip(duals, leaves, strict=True)]
        valued, aux = with_aux("jvp", f, has_aux)
        copies = unflatten(structure, inputs)
        out = draws.first(lambda: valued(*copies))
    sync_module_state(primals, structure, copies, inputs)
    outputs, out_structure = flatten(out)
    outputs = [as_output("jvp", x, level) for x in outputs]
    slopes = [_tangent(level, x) for x in outputs]
    if decomposed and some_are_equal(decomposed):
        floats = [i for i, x in enumerate(outputs) if isinstance(x, DIFFERENTIABLE)]
        values = [lower(x.inner() if x.backend is level else x, below) for x in (outputs[i] for i in floats)]
        rest_aux = list(aux)
        repaired = repaired_tangents(
            valued, draws, structure, leaves, given, below, values, [slopes[i] for i in floats]
        )
        aux[:] = rest_aux
        for i, t in zip(floats, repaired, strict=True):
            slopes[i] = t
    moved = [lower(as_recorded(t), home) for t in slopes]
    value = unflatten(out_structure, [_value(level, x, home) for x in outputs])
    rest = (export_aux(aux[0], below, home),) if has_aux else ()
    invalidate([] if retained else inputs, ARGUMENT)
    return value, unflatten(out_structure, moved), *rest


def _tangent(level: Forward[Any], x: Any) -> Any:
    """The tangent of an output of a function that was run on ``level``; zeros for a constant."""
    if not isinstance(x, DIFFERENTIABLE):
        return _other_tangent(x)
    below = level.inner_backend if x.backend is level else x.backend
    found = x.primitive.tangent if x.backend is level else None
    return zeros_like(below, x) if found is None else tensor_of(found, below, x.dtype)


def _other_tangent(x: Any) -> Any:
    """The entry of a tangent for anything but a float tensor: 0.0 for a float, else the object itself."""
    return 0.0 if isinstance(x, (float, complex)) else x


def check_pairs(name: str, primals: Any, tangents: Any) -> None:
    """Raise unless both are tuples of the same length."""
    if primals.__class__ is not tuple or tangents.__class__ is not tuple:
        advice = f"primals and tangents are tuples with one entry for each argument: {name}(f, (x,), (t,))"
        raise ArgumentError(f"{name}: {advice}")
    if len(primals) != len(tangents):
        raise ArgumentError(f"{name}: {len(primals)} primals and {len(tangents)} tangents")


def _like(name: str, what: str, x: Any, t: Any) -> Any:
    """A tangent or cotangent of ``x``, which may be a number for all elements; anything else is refused."""
    if isinstance(t, (int, float)) or (isinstance(t, complex) and x.dtype.kind == "complex"):
        return tensor_of(x.backend.full(x.shape, fit(t, x.dtype), x.dtype), x.backend, x.dtype)
    if not isinstance(t, Tensor):
        raise DTypeError(f"{name}: the {what} of {describe((x,))} is a tensor or a number, not {type(t).__name__}")
    if t.shape != x.shape or t.dtype is not x.dtype:
        raise ShapeError(f"{name}: the {what} {describe((t,))} is not like {describe((x,))}")
    return t
