"""Gradients by the paths of a model's parameters: reading, adding, scaling, measuring and clipping them.

:func:`named_gradients` reads them out of what ``backward`` returned. All functions here take and return dicts, and
change none::

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

from backburn.base.dtypes import DType, float32
from backburn.base.errors import ArgumentError, BackendMismatchError, DTypeError, ShapeError, hint_for
from backburn.base.places import Places, Shared
from backburn.tensor.classes import FloatTensor
from backburn.tensor.dispatch import describe, inner_of

NamedGradients: TypeAlias = dict[str, FloatTensor]


def is_float_tensor(value: Any) -> bool:
    """Whether a leaf of a model can be a parameter."""
    return value.__class__ is FloatTensor


def named_gradients(model: Any, gradients: Any) -> NamedGradients:
    """The gradient of each parameter that has one, by the parameter's path (its first, if it stands in several places).

    ``gradients`` is what ``backward`` returned. The gradients are tensors of the inner backend.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([1.0, 2.0]).require_grad()}
        >>> named_gradients(model, (model["w"] * model["w"]).sum().backward())
        {'w': Tensor([2., 4.], dtype=float32, backend=numpy)}
    """
    found: NamedGradients = {}
    for leaf in Places(model, is_float_tensor).leaves:
        if leaf.value.is_require_grad and (gradient := leaf.value.grad(gradients)) is not None:
            found[leaf.path] = gradient
    return found


def add(first: Mapping[str, FloatTensor], second: Mapping[str, FloatTensor]) -> NamedGradients:
    """The sums of the gradients, path by path; a gradient that only one side has stays as it is."""
    total = dict(first)
    for path, gradient in second.items():
        total[path] = total[path] + gradient if path in total else gradient
    return total


def scale(gradients: Mapping[str, FloatTensor], factor: float | FloatTensor) -> NamedGradients:
    """The gradients times ``factor``, a number or a 0-d tensor of the gradients' backend; each keeps its dtype."""
    if isinstance(factor, (int, float)):
        return {path: gradient * float(factor) for path, gradient in gradients.items()}
    return {path: _times(gradient, factor) for path, gradient in gradients.items()}


def global_norm(gradients: Mapping[str, FloatTensor]) -> FloatTensor:
    """The Euclidean norm of all gradients taken as one vector: a 0-d tensor, of at least float32.

    Raises :class:`ArgumentError` when there are none.

        >>> import backburn as bb
        >>> global_norm({"a": bb.asarray([3.0]), "b": bb.asarray([[4.0]])}).item()
        5.0
    """
    if not gradients:
        raise ArgumentError("global_norm: there are no gradients")
    total: Any = None
    for gradient in gradients.values():
        k, g = gradient.backend, gradient.primitive
        dtype = _wide(gradient.dtype)
        squares = k.square(g if dtype is gradient.dtype else k.cast(g, dtype))
        part = FloatTensor(k.sum(squares, tuple(range(gradient.ndim)), False), k, dtype)
        total = part if total is None else total + part
    return FloatTensor(total.backend.sqrt(total.primitive), total.backend, total.dtype)


def clip_grad_norm(gradients: Mapping[str, FloatTensor], max_norm: float) -> tuple[NamedGradients, FloatTensor]:
    """The gradients, scaled down together where their global norm is above ``max_norm``, and the norm that it was.

    The factor is that of Pascanu, Mikolov and Bengio (2013), ``max_norm / norm``. Nothing is brought to the host. A
    norm that is not finite makes every gradient NaN or 0; look at it with ``norm.item()`` where that may happen.
    Raises :class:`ArgumentError` unless ``max_norm`` is positive.

        >>> import backburn as bb
        >>> clipped, norm = clip_grad_norm({"a": bb.asarray([3.0, 4.0], backend="numpy")}, 1.0)
        >>> clipped["a"], norm.item()
        (Tensor([0.6, 0.8], dtype=float32, backend=numpy), 5.0)
    """
    if not max_norm > 0 or math.isinf(max_norm):
        raise ArgumentError(f"clip_grad_norm: max_norm is a positive number, not {max_norm}")
    if not gradients:
        raise ArgumentError("clip_grad_norm: there are no gradients")
    norm = global_norm(gradients)
    k = norm.backend
    # max_norm / max(norm, max_norm) is 1 for small norms, and 0 has no special part in it.
    factor = FloatTensor(k.div(max_norm, k.maximum(norm.primitive, max_norm)), k, norm.dtype)
    return scale(gradients, factor), norm


def _wide(dtype: DType) -> DType:
    return float32 if dtype.bits < 32 else dtype


def _times(gradient: FloatTensor, factor: FloatTensor) -> FloatTensor:
    """A product in the gradient's dtype, computed in the wider one of both."""
    k = gradient.backend
    product = gradient * factor
    if product.dtype is gradient.dtype:
        return product
    return FloatTensor(k.cast(product.primitive, gradient.dtype), k, gradient.dtype)


def by_leaf(leaves: list[Shared], gradients: Mapping[str, Any]) -> dict[int, Any]:
    """The primitive of each leaf's gradient on the inner backend, by the leaf's position in ``leaves``.

    ``gradients`` are tensors by path, of the parameter's backend or of its inner one. The gradients of one parameter
    under several paths are added. Raises for unknown paths and for gradients that do not fit their parameter.
    """
    positions = {path: i for i, leaf in enumerate(leaves) for path in leaf.paths}
    found: dict[int, Any] = {}
    for path, gradient in gradients.items():
        if path not in positions:
            raise ArgumentError(f"step: the model has no parameter {path!r}. {hint_for(path, positions)}")
        if gradient is None:
            continue
        i = positions[path]
        x = leaves[i].value
        k = inner_of(x.backend) or x.backend
        primitive = _fitting(path, x, gradient, k)
        found[i] = k.add(found[i], primitive) if i in found else primitive
    return found


def _fitting(path: str, x: FloatTensor, gradient: Any, k: Any) -> Any:
    """The inner primitive of a gradient that fits ``x``, whose steps are computed on ``k``."""
    pair = f"gradient and parameter: {describe((gradient, x))}"
    if gradient.__class__ is not FloatTensor or gradient.dtype is not x.dtype:
        raise DTypeError(f"step: the gradient of {path} is a tensor of the parameter's dtype; {pair}")
    if gradient.shape != x.shape:
        raise ShapeError(f"step: the gradient of {path} has another shape than the parameter; {pair}")
    if gradient.backend == k:
        return gradient.primitive
    if gradient.backend == x.backend:
        return gradient.inner().primitive
    raise BackendMismatchError(f"step: the gradient of {path} lives on another backend than the parameter; {pair}")
