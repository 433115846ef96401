"""Gradients by the paths of a model's parameters: reading, adding, scaling, measuring and clipping them.

:func:`named_gradients` reads them from the result of ``backward``. The other functions here take dicts of gradients by
path, or trees like the model as ``bb.grad`` returns them, and return new dicts. (For tied parameters, ``bb.grad``
returns a partial gradient at each path; ``named_gradients`` sums these.) ::

    total = None
    for images, labels in parts:
        gradients = named_gradients(model, cross_entropy(model(images), labels).backward())
        total = gradients if total is None else add(total, gradients)
    total, norm = clip_grad_norm(scale(total, 1 / len(parts)), 1.0)
    optimizer.step(model, total)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from backburn.backend.contract import is_autodiff
from backburn.base.contexts import ACTIVE
from backburn.base.errors import ArgumentError, BackburnError, BackendMismatchError, DTypeError, ShapeError, hint_for
from backburn.base.mutable_trees import Leaf, MutableTree
from backburn.base.trees import NODE_TYPES, leaves_with_paths
from backburn.tensor.classes import DIFFERENTIABLE, FloatTensor, Tensor
from backburn.tensor.complex_numbers import complex as complex_tensor
from backburn.tensor.complex_numbers import imag, real
from backburn.tensor.core.dispatch import cast, upcast_half
from backburn.tensor.core.levels import innermost
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import bounded, number
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.reduce import vector_norm
from backburn.tensor.shape import stack

NamedGradients: TypeAlias = dict[str, FloatTensor]


def is_float_tensor(value: Any) -> bool:
    """Whether a leaf of a model can be a parameter."""
    return value.__class__ in DIFFERENTIABLE


def named_gradients(model: Any, gradients: Any) -> NamedGradients:
    """The gradient of each parameter that has one, by the parameter's (first) path.

    ``gradients`` is the result of ``backward``, or a tree like the model, as ``bb.grad`` returns it. The gradients are
    tensors of the inner backend; inside a transform, those of a tree keep their level.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([1.0, 2.0]).require_grad()}
        >>> named_gradients(model, (model["w"] * model["w"]).sum().backward())
        {'w': Tensor([2., 4.], dtype=float32, backend=numpy)}
    """
    return named_by_leaf(model, MutableTree(model, is_float_tensor).leaves, gradients)


def named_by_leaf(model: Any, leaves: list[Leaf], gradients: Any) -> NamedGradients:
    """:func:`named_gradients` for leaves that have been found by walking over the model."""
    if is_tree(gradients):
        given = by_leaf("named_gradients", model, leaves, gradients, lower=ACTIVE.get() is None)
        return {leaves[i].path: gradient for i, gradient in sorted(given.items())}
    found: NamedGradients = {}
    for leaf in leaves:
        if leaf.value.is_require_grad and (gradient := leaf.value.grad(gradients)) is not None:
            found[leaf.path] = gradient
    return found


def add(first: Any, second: Any) -> NamedGradients:
    """The sums of gradients, path by path; a gradient that only one side has is unchanged.

    Raises :class:`ShapeError` for two gradients of different shapes under one path.

    >>> import backburn as bb
    >>> total = add({"a": bb.asarray([1.0])}, {"a": bb.asarray([2.0]), "b": bb.asarray([3.0])})
    >>> {path: gradient.tolist() for path, gradient in total.items()}
    {'a': [3.0], 'b': [3.0]}
    """
    total = _named("add", first)
    for path, gradient in _named("add", second).items():
        if path in total and total[path].shape != gradient.shape:
            raise ShapeError(f"add: two gradients of {path} differ in shape: {describe((total[path], gradient))}")
        total[path] = total[path] + gradient if path in total else gradient
    return total


def scale(gradients: Any, factor: float | Tensor) -> NamedGradients:
    """The gradients times ``factor``, a number or a 0-d tensor; each keeps its dtype.

    Raises :class:`ArgumentError` for anything else.

    >>> import backburn as bb
    >>> scale({"a": bb.asarray([1.0, 2.0])}, 0.5)["a"].tolist()
    [0.5, 1.0]
    """
    named = _named("scale", gradients)
    if isinstance(factor, Tensor):
        if factor.shape:
            raise ArgumentError(f"scale: factor is a number or a 0-d tensor, not {describe((factor,))}")
        return {path: cast(x * to_backend_of(x, factor), x.dtype) for path, x in named.items()}
    times = float(number("scale", "factor", factor))
    return {path: gradient * times for path, gradient in named.items()}


def global_norm(gradients: Any, norm_type: float = 2.0) -> FloatTensor:
    """The norm of all gradients as one vector: a 0-d tensor, at least float32, on the backend of the first gradient.

    It is Euclidean by default, or of another positive order ``norm_type``; with ``inf`` it is the largest absolute
    value. No intermediate result overflows unless the norm does. Raises :class:`ArgumentError` if there are no
    gradients, and unless ``norm_type`` is positive.

        >>> import backburn as bb
        >>> gradients = {"a": bb.asarray([3.0]), "b": bb.asarray([[-4.0]])}
        >>> global_norm(gradients).item(), global_norm(gradients, norm_type=float("inf")).item()
        (5.0, 4.0)
    """
    return _norm("global_norm", _named("global_norm", gradients), norm_type)


def _norm(name: str, named: NamedGradients, norm_type: float) -> FloatTensor:
    """The norm of the norms of all gradients."""
    order = bounded(name, "norm_type", norm_type, above=0)
    if not named:
        raise ArgumentError(f"{name}: there are no gradients")
    norms = [vector_norm(upcast_half(g), ord=order) for g in named.values()]
    return vector_norm(stack([to_backend_of(norms[0], norm) for norm in norms]), ord=order)


def clip_grad_norm(gradients: Any, max_norm: float, norm_type: float = 2.0) -> tuple[NamedGradients, FloatTensor]:
    """The gradients, scaled down if their :func:`global_norm` is above ``max_norm``, and the original norm.

    The factor is that of Pascanu, Mikolov and Bengio (2013), ``max_norm / norm``. Nothing is copied to the host. A norm
    that is not finite makes every gradient NaN or 0; check ``norm.item()`` if that may happen. Raises
    :class:`ArgumentError` unless ``max_norm`` and ``norm_type`` are positive.

        >>> import backburn as bb
        >>> clipped, norm = clip_grad_norm({"a": bb.asarray([3.0, 4.0], backend="numpy")}, 1.0)
        >>> clipped["a"], norm.item()
        (Tensor([0.6, 0.8], dtype=float32, backend=numpy), 5.0)
    """
    bounded("clip_grad_norm", "max_norm", max_norm, above=0, below=math.inf)
    named = _named("clip_grad_norm", gradients)
    norm = _norm("clip_grad_norm", named, norm_type)
    # max_norm / max(norm, max_norm) is 1 for small norms, also for 0.
    return scale(named, max_norm / norm.maximum(max_norm)), norm


def clip_grad_value(gradients: Any, clip_value: float) -> NamedGradients:
    """The gradients with every element clipped to the range from ``-clip_value`` to ``clip_value``.

    Both parts of complex elements are clipped. Raises :class:`ArgumentError` unless ``clip_value`` is positive.

        >>> import backburn as bb
        >>> clip_grad_value({"a": bb.asarray([3.0, -0.25], backend="numpy")}, 0.5)
        {'a': Tensor([ 0.5 , -0.25], dtype=float32, backend=numpy)}
    """
    bounded("clip_grad_value", "clip_value", clip_value, above=0)
    named = _named("clip_grad_value", gradients)
    return {path: _clipped(gradient, clip_value) for path, gradient in named.items()}


def _clipped(x: Any, most: float) -> Any:
    """A tensor, or both parts of a complex one, clipped."""
    if x.dtype.kind == "complex":
        return complex_tensor(real(x).clip(-most, most), imag(x).clip(-most, most))
    return x.clip(-most, most)


def to_backend_of(x: FloatTensor, number: Any) -> FloatTensor:
    """A 0-d tensor on the backend of ``x``: a model may have parts on several backends."""
    own, other = number._backend, x._backend
    return number if own is other or innermost(own) == innermost(other) else number.to(other)


# ---- gradients by path, and in trees like the model ----


def is_tree(gradients: Any) -> bool:
    """Whether gradients are tensors in a container, rather than the result of ``backward``."""
    return isinstance(gradients, Mapping) or (gradients is not None and NODE_TYPES[gradients.__class__] is not None)


def _is_by_path(gradients: Any) -> bool:
    """Whether gradients are a flat dict of tensors by path."""
    return isinstance(gradients, Mapping) and not any(
        value is not None and NODE_TYPES[value.__class__] for value in gradients.values()
    )


def _named(name: str, gradients: Any) -> NamedGradients:
    """Gradients by path as a new dict, each tensor of a tree once; anything without gradients is refused."""
    if _is_by_path(gradients):
        given = {path: gradient for path, gradient in gradients.items() if gradient is not None}
        for path, gradient in given.items():
            if not is_tensor(gradient):
                how = ": bb.asarray(...) makes one" if hasattr(gradient, "__array__") else ""
                raise DTypeError(f"{name}: the gradient of {path} is a tensor, not {describe((gradient,))}{how}")
        return given
    read = "named_gradients(model, gradients) reads them from what backward returned"
    if not is_tree(gradients):
        raise ArgumentError(f"{name}: takes gradients by path, not {type(gradients).__name__}: {read}")
    if hasattr(gradients, "named_parameters"):
        named = dict(gradients.named_parameters())
    else:
        named = {leaf.path: leaf.value for leaf in MutableTree(gradients, is_float_tensor).leaves}
    for path, gradient in named.items():
        if gradient.is_require_grad:
            raise ArgumentError(f"{name}: takes gradients, and {path!r} is a parameter, which holds none: {read}")
    return named


def place_of_steps(own: Any) -> Any:
    """The backend on which a parameter of the backend ``own`` is updated: below its level of autodiff, if any."""
    return own.inner_backend if is_autodiff(own) else own


def by_leaf(name: str, model: Any, leaves: list[Leaf], gradients: Any, lower: bool = True) -> dict[int, FloatTensor]:
    """Each leaf's gradient on the inner backend, by the leaf's position in ``leaves``.

    ``gradients`` are tensors by path, or in a tree like ``model``, of the parameter's backend or of its inner one. The
    gradients of one parameter under several paths are added, unless they are one tensor. Those of frozen parameters are
    left out, and in a tree those of buffers. Unless ``lower``, gradients stay on their own levels, and those of frozen
    parameters are included. Raises for unknown paths and for gradients that do not fit.
    """
    positions = {path: i for i, leaf in enumerate(leaves) for path in leaf.paths}
    in_tree = not _is_by_path(gradients)
    buffers = dict(model.named_buffers()) if in_tree and hasattr(model, "named_buffers") else {}
    found: dict[int, FloatTensor] = {}
    seen: set[tuple[int, int]] = set()
    for path, gradient in leaves_with_paths(gradients) if in_tree else gradients.items():
        if path not in positions:
            if in_tree and not is_float_tensor(gradient):
                continue
            if not positions:
                raise ArgumentError(
                    f"{name}: takes the model first, then its gradients, but the first argument, a "
                    f"{type(model).__name__}, has no parameters"
                )
            raise ArgumentError(f"{name}: the model has no parameter {path!r}. {hint_for(path, positions)}")
        i = positions[path]
        if gradient is None or leaves[i].path in buffers or (i, id(gradient)) in seen:
            continue
        seen.add((i, id(gradient)))
        x = leaves[i].value
        if gradient is x and in_tree:
            raise ArgumentError(f"{name}: takes gradients, and {path!r} is the parameter itself")
        own = x._backend
        k = place_of_steps(own)
        gradient = _fitting(name, path, x, gradient, k if lower else None)
        if k is own or x.is_require_grad or not lower:
            found[i] = found[i] + gradient if i in found else gradient
    return found


def _fitting(name: str, path: str, x: FloatTensor, gradient: Any, k: Any) -> FloatTensor:
    """A gradient of ``x``, checked, as a tensor of ``k``, where ``x`` is updated; unchanged if that is None."""
    fault: BackburnError
    if gradient.__class__ is not x.__class__ or gradient._dtype is not x._dtype:
        fault = DTypeError(f"{name}: the gradient of {path} is a tensor of the parameter's dtype")
    elif gradient.shape != x.shape:
        fault = ShapeError(f"{name}: the gradient of {path} has another shape than the parameter")
    elif k is None or gradient._backend is k or gradient._backend == k:
        return gradient
    elif gradient.backend == x.backend:
        return gradient.inner()
    else:
        fault = BackendMismatchError(f"{name}: the gradient of {path} is on another backend than the parameter")
    raise type(fault)(f"{fault}; gradient and parameter: {describe((gradient, x))}")
