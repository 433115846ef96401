"""User-defined derivatives: ``custom_vjp`` and ``stop_gradient``."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from backburn.autodiff import Autodiff, Dual, Forward
from backburn.autodiff.forward_codegen import paired
from backburn.autodiff.graph import Node, next_stamp
from backburn.autodiff.reverse_codegen import with_outputs
from backburn.base.contexts import ACTIVE, RECORDING, scoped
from backburn.base.errors import ArgumentError, BackendMismatchError, GraphError, ShapeError
from backburn.base.trees import NODE_TYPES, Structure, flatten, joined, paths, tree_map, unflatten
from backburn.batching import Batched, is_mapped
from backburn.hints import add_hints
from backburn.tensor.classes import DIFFERENTIABLE, FloatTensor, Tensor
from backburn.tensor.core.levels import common_backend, constant, has_history, inner_of, levels_between, lift
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import tensor_of
from backburn.tensor.gradients import conjugate
from backburn.transforms.batching import vmap
from backburn.transforms.derivatives import zeros_like
from backburn.transforms.levels import check_function, restore_state, to_level, transform_scope


def stop_gradient(tree: Any) -> Any:
    """The tensors of ``tree`` as constants on every level: no gradient flows through them.

    >>> import backburn as bb
    >>> bb.transforms.grad(lambda x: x * stop_gradient(x))(3.0).item()
    3.0
    """
    return tree_map(lambda x: constant(x) if isinstance(x, DIFFERENTIABLE) else x, tree)


class custom_vjp:  # noqa: N801 - a decorator
    """A function with a user-defined reverse-mode derivative.

    ``forward(*args)`` returns the function's value and residuals, ``backward(residuals, cotangent)`` a tuple of the
    cotangents of ``args``, with the structure of these (None for an argument, or a branch of one, that has none). Both
    are ordinary functions of tensors and may be differentiated in turn: ``forward`` is then differentiated as written,
    and by the user-defined derivative only where it calls the decorated function. Arguments given by name are passed by
    position. The value is a tree of tensors, and the cotangent a tree like it: zeros if none was propagated, None for a
    tensor that is not a float tensor. Forward mode (:func:`jvp`) transposes ``backward``, which should be linear in its
    cotangent; if it is not, it is linearized at 0.

        >>> import backburn as bb
        >>> @custom_vjp
        ... def clipped(x):
        ...     return x * 1.0
        >>> clipped.define(lambda x: (x * 1.0, None), lambda _, g: (bb.clip(g, -1.0, 1.0),))
        >>> x = bb.asarray([1.0]).require_grad()
        >>> x.grad((clipped(x) * 100.0).backward()).tolist()
        [1.0]
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        check_function("custom_vjp", f)
        functools.update_wrapper(self, f)  # first: it copies attributes of any name
        self.f = f
        self.name: str = getattr(f, "__name__", f.__class__.__name__)
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<custom_vjp {getattr(self.f, '__qualname__', self.name)}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to ``instance``, which is then the first argument, also of both halves."""
        return self if instance is None else types.MethodType(self, instance)

    def define(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Attach the two halves of the derivative."""
        check_function("define", forward)
        check_function("define", backward)
        self.forward, self.backward = forward, backward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's value; recorded with the given derivative where an argument is tracked."""
        if kwargs:
            args = _by_position(self.name, self.f, args, kwargs)
        leaves, structure = flatten(args)
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        outer: Any = common_backend(self.name, tensors) if tensors else None
        if not RECORDING.get() or not any(map(has_history, tensors)):
            return self.f(*args)
        if isinstance(outer, Batched):
            return _for_each_example(self, outer, leaves, structure)
        tracked = [isinstance(x, DIFFERENTIABLE) and x.backend is outer and x.is_tracked for x in leaves]
        if not any(tracked):
            return self._below(outer, args, leaves, structure)
        if self.forward is None or self.backward is None:
            raise GraphError(f"{self.name}: no derivative was given: call {self.name}.define(forward, backward)")
        below = outer.inner_backend
        lifted = [type(x)(lift(x, outer), outer, x.dtype) if isinstance(x, Tensor) else x for x in leaves]
        inner = [x.inner() if isinstance(x, Tensor) else x for x in lifted]
        # The level is that of the operands, so that residuals of an inner transform are valid in the backward function.
        around, given = ACTIVE.get(), unflatten(structure, inner)
        with scoped(ACTIVE, below if around is outer else around):
            out, residuals = _pair(self.name, self.forward(*given))
        restore_state(args, structure, given, inner, lambda path, new, old: _at_home(new, old.backend))
        outputs, form = flatten(out)
        is_float = tuple(isinstance(x, DIFFERENTIABLE) for x in outputs)
        values = [_on_level(x, below, "forward", self.name) for x in outputs]

        def pulled(cotangents: list[Any], onto: Any) -> list[Any]:
            """The primitives on ``onto`` of the cotangents of the tracked arguments; None stands for zeros."""
            reached = [
                (zeros_like(onto, x) if c is None else tensor_of(conjugate(onto, c, x.dtype), onto, x.dtype))
                if of_float
                else None
                for x, c, of_float in zip(outputs, cotangents, is_float, strict=True)
            ]
            back = self.backward(residuals, unflatten(form, reached))  # type: ignore[misc]
            found = _like_arguments(self.name, structure, back)
            chosen: list[tuple[Any, Any]] = [(x, c) for x, c, t in zip(lifted, found, tracked, strict=True) if t]
            return [_checked(self.name, x, c, onto) for x, c in chosen]

        with_notes = [x.primitive for x, t in zip(lifted, tracked, strict=True) if t]
        if isinstance(outer, Forward):
            made = _transpose_rule(below, pulled, outputs, values, [x.tangent for x in with_notes])
        else:

            def pull(k: Any, g: list[Any], node: Node) -> tuple[Any, ...]:
                return tuple(pulled(g, k))

            node = Node(pull, tuple(x.node for x in with_notes), (), (), next_stamp())
            made = list(with_outputs(node, tuple(values), is_float))
        return unflatten(form, [type(x)(v, outer, x.dtype) for x, v in zip(outputs, made, strict=True)])

    def _below(self, outer: Any, args: tuple[Any, ...], leaves: list[Any], structure: Structure) -> Any:
        """The call on the level below ``outer``, on which all arguments are constants, as a constant of ``outer``."""
        around = ACTIVE.get()
        inner = [x.inner() if isinstance(x, Tensor) and x.backend is outer else x for x in leaves]
        given = unflatten(structure, inner)
        with scoped(ACTIVE, outer.inner_backend if around is outer else around):
            out = self(*given)
        restore_state(args, structure, given, inner, lambda path, new, old: _at_home(new, old.backend))
        return tree_map(lambda x: _at_home(x, outer) if isinstance(x, Tensor) else x, out)


add_hints(custom_vjp, {"defvjp": "define(forward, backward)"})


def _pair(name: str, pair: Any) -> tuple[Any, Any]:
    """The value and the residuals that a forward function returned; the value is a tree of tensors, some of floats."""
    if isinstance(pair, tuple) and len(pair) == 2:
        leaves = flatten(pair[0])[0]
        if all(isinstance(x, Tensor) for x in leaves):
            if any(isinstance(x, DIFFERENTIABLE) for x in leaves):
                return pair
            raise ArgumentError(
                f"custom_vjp: the value of {name} has no float tensor, and so nothing to differentiate: call the "
                f"function without the decorator, or with detached arguments"
            )
    what = type(pair).__name__ + (f" of {len(pair)}" if isinstance(pair, tuple) else "")
    raise ArgumentError(
        f"custom_vjp: the forward function of {name} must return a pair, its value (a float tensor, or a tree of "
        f"tensors) and the residuals (None if there are none), not {what}"
    )


def _at_home(x: Tensor, home: Any) -> Tensor:
    """``x``, of a level above or below ``home``, as a tensor of ``home``."""
    below = levels_between(x.backend, home) is not None
    return type(x)(lift(x, home), home, x.dtype) if below else to_level(x, home)


def _on_level(x: Tensor, below: Any, half: str, name: str) -> Any:
    """The result of one half of the derivative on the level below, without history on the levels above."""
    own = x
    while levels_between(own.backend, below) is None:
        if isinstance(own.backend, Batched) and is_mapped(own.backend, own.primitive):
            raise GraphError(
                f"custom_vjp: the {half} function of {name} uses a tensor that it was not given, and that differs "
                f"between the examples of the vmap around it: {describe((x,))}. Pass it as an argument"
            )
        if own.is_tracked or inner_of(own.backend) is None:
            raise GraphError(
                f"custom_vjp: the {half} function of {name} uses a tracked tensor that it was not given, and whose "
                f"gradient would be lost: {describe((x,))}. Pass it as an argument, or detach it"
            )
        own = own.inner()
    return lift(own, below)


def _by_position(name: str, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call in the order in which ``f`` takes them."""
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    bound.apply_defaults()
    if bound.kwargs:
        names = ", ".join(bound.kwargs)
        raise ArgumentError(f"custom_vjp: {name} takes {names} by name only, and its two halves by position")
    return bound.args


def _transpose_rule(
    below: Any, pulled: Callable[..., Any], outputs: list[Any], values: list[Any], tangents: list[Any]
) -> list[Any]:
    """The outputs with the tangents that a rule for cotangents implies.

    They are the derivatives of ``tangents . rule(u)`` by the outputs' cotangents ``u`` at 0.
    """
    middle: Any = Autodiff(below)
    zeros = [
        below.zeros(tuple(v.shape), x.dtype) if isinstance(x, DIFFERENTIABLE) else None
        for x, v in zip(outputs, values, strict=True)
    ]
    us = [None if z is None else middle.new_leaf(z) for z in zeros]
    with transform_scope(middle):
        cotangents = pulled(us, middle)
    dtype = next(x.dtype for x in outputs if isinstance(x, DIFFERENTIABLE))
    product = paired(middle, zip(cotangents, tangents, strict=True), dtype)
    gradients = None if product is None else middle.backward(product)
    made: list[Any] = []
    for value, zero, u in zip(values, zeros, us, strict=True):
        found = None if gradients is None or u is None else middle.grad(u, gradients)
        made.append(value if zero is None else Dual(value, zero if found is None else found))
    return made


def _for_each_example(rule: custom_vjp, level: Batched, leaves: list[Any], structure: Any) -> Any:
    """A function with a user-defined derivative, of arguments on ``level``, as such a function on the level below.

    It maps the function and both halves of its derivative; an argument that is the same for all examples gets the sum
    of their cotangents.
    """
    k = level.inner_backend
    options: dict[str, Any] = {
        "axis_size": level.size, "randomness": level.randomness, "on_fallback": level.on_fallback
    }  # fmt: skip
    own = [isinstance(x, Tensor) and is_mapped(level, lift(x, level)) for x in leaves]
    axes = tuple(0 if mine else None for mine in own)
    inner = [
        type(x)(level.unmapped(x.primitive), k, x.dtype) if isinstance(x, Tensor) and x.backend is level else x
        for x in leaves
    ]
    if not any(own):
        return rule(*unflatten(structure, inner))
    kept: list[Any] = []

    def forward(*inputs: Any) -> Any:
        try:
            out, residuals = _pair(rule.name, rule.forward(*unflatten(structure, inputs)))  # type: ignore[misc]
        except BackendMismatchError as error:
            raise BackendMismatchError(
                f"{error}. Or {rule.name}, whose derivative is given by hand, captures a tensor of the vmap around it: "
                f"pass that as an argument"
            ) from error
        saved, form = flatten(residuals)
        kept[:] = [form, [None if isinstance(r, Tensor) else r for r in saved]]
        return out, [r for r in saved if isinstance(r, Tensor)]

    def backward(saved: list[Any], cotangent: Any) -> Any:
        tensors, (form, others) = iter(saved), kept
        residuals = unflatten(form, [next(tensors) if other is None else other for other in others])
        try:
            found = rule.backward(residuals, cotangent)  # type: ignore[misc]
        except (BackendMismatchError, GraphError) as error:
            if not any(map(callable, others)):
                raise
            raise GraphError(
                f"custom_vjp: a function among the residuals of {rule.name} keeps tensors of the vmap in which "
                f"the forward function ran: return these tensors as residuals, and make the function (with bb.vjp, "
                f"say) in the backward function"
            ) from error
        return tuple(_like_arguments(rule.name, structure, found))

    def pulled(saved: list[Any], cotangent: Any) -> Any:
        found = vmap(backward, **options)(saved, cotangent)
        return tuple(g if g is None or mine else g.sum(axis=0) for g, mine in zip(found, own, strict=True))

    together = type(rule)(vmap(functools.wraps(rule.f)(lambda *a: rule.f(*unflatten(structure, a))), axes, **options))
    if rule.forward is not None:
        together.define(vmap(forward, axes, **options), pulled)
    around = ACTIVE.get()
    with scoped(ACTIVE, k if around is level else around):  # it is called on the level below
        out = together(*inner)
    return tree_map(lambda x: type(x)(level.mapped(lift(x, k)), level, x.dtype), out)


def _like_arguments(name: str, structure: Structure, cotangents: Any) -> list[Any]:
    """A cotangent or None for every leaf of the arguments, which have this structure."""
    arguments = structure.children
    if not isinstance(cotangents, tuple) or len(cotangents) != len(arguments):
        raise ArgumentError(
            f"custom_vjp: the backward function of {name} must return a tuple of {len(arguments)} cotangents, one for "
            f"each argument (None where there is none)"
        )
    return [
        leaf
        for number, (argument, cotangent) in enumerate(zip(arguments, cotangents, strict=True))
        for leaf in _aligned(name, argument, cotangent, str(number))
    ]


def _aligned(name: str, structure: Structure, cotangent: Any, path: str) -> list[Any]:
    """A cotangent or None for every leaf of an argument of this structure; None may stand for a whole branch."""
    if cotangent is None or not structure.size:
        return [None] * structure.size
    node = NODE_TYPES[cotangent.__class__]
    if structure.cls is None or node is None:
        if structure.cls is None and node is None:
            return [cotangent]
        given: dict[Any, Any] = {}
    else:
        children, keys, _ = node.flatten(cotangent)
        given = dict(zip(keys, children, strict=True))
        if isinstance(cotangent, dict) and not issubclass(structure.cls, dict):  # some of a module's parameters
            known = list(paths(structure))
            if given.keys() <= set(known):
                return [given.get(p) for p in known]
        if given.keys() == set(structure.keys):
            return [
                leaf
                for key, child in zip(structure.keys, structure.children, strict=True)
                for leaf in _aligned(name, child, given[key], joined(path, key))
            ]
    found = f"a {cotangent.__class__.__name__}" + (f" with the entries {list(given)}" if given else "")
    expected = "a tensor" if structure.cls is None else f"a {structure.cls.__name__} with {list(structure.keys)}"
    raise ArgumentError(
        f"custom_vjp: the backward function of {name} returned {found} for the cotangent at {path!r}, where the "
        f"arguments have {expected}"
    )


def _checked(name: str, x: FloatTensor, cotangent: Any, below: Any) -> Any:
    if cotangent is None:
        return None
    if not isinstance(cotangent, DIFFERENTIABLE) or cotangent.shape != x.shape or cotangent.dtype is not x.dtype:
        what = describe((cotangent,)) if isinstance(cotangent, Tensor) else type(cotangent).__name__
        raise ShapeError(
            f"custom_vjp: the backward function of {name} returned {what} as the cotangent of {describe((x,))}"
        )
    return conjugate(below, _on_level(cotangent, below, "backward", name), x.dtype)
