"""Levels of autodiff and of transforms: which backend wraps which, and operands lifted to the highest of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backburn.autodiff import Forward
from backburn.backend.contract import AnyBackend, is_autodiff
from backburn.backend.registry import load_backend
from backburn.base.errors import ArgumentError, BackburnError, BackendMismatchError
from backburn.batching import Batched
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import wrap


def inner_of(backend: AnyBackend) -> AnyBackend | None:
    """The backend that ``backend`` wraps; None if it wraps none."""
    return getattr(backend, "inner_backend", None)


def innermost(backend: AnyBackend) -> AnyBackend:
    """The backend under all levels, which computes."""
    while (inner := inner_of(backend)) is not None:
        backend = inner
    return backend


def _height(backend: AnyBackend) -> int:
    """The number of levels above the innermost backend."""
    inner = inner_of(backend)
    return 0 if inner is None else 1 + _height(inner)


def levels_between(lower: AnyBackend, upper: AnyBackend) -> list[AnyBackend] | None:
    """The decorated backends from just above ``lower`` up to ``upper``; None where ``upper`` does not wrap it."""
    path: list[AnyBackend] = []
    level: AnyBackend | None = upper
    while level is not None and level is not lower:
        path.append(level)
        level = inner_of(level)
    if level is None:  # only if identity fails: equality compares specs, which each level composes
        place = next((place for place, level in enumerate(path) if level == lower), None)
        if place is None:
            return None
        del path[place:]
    return path[::-1]


#: The methods of a level that convert a primitive of each kind to one of the inner backend, and lift it from there.
INNER = {"float": "inner", "complex": "inner", "int": "int_inner", "bool": "bool_inner", "quantized": "q_inner"}
FROM_INNER = {
    "float": "from_inner", "complex": "from_inner", "int": "int_from_inner", "bool": "bool_from_inner",
    "quantized": "q_from_inner",
}  # fmt: skip


def lift(x: Any, backend: AnyBackend) -> Any:
    """The primitive of tensor ``x`` as a constant on ``backend``, which is that of ``x`` or wraps it."""
    primitive = x._primitive
    if x._backend is backend:
        return primitive
    return as_constant(primitive, x._dtype.kind, levels_between(x._backend, backend) or ())


def as_constant(primitive: Any, kind: str, levels: Iterable[Any]) -> Any:
    """A primitive of this kind as a constant on the last of ``levels``, each of which wraps the one before."""
    for level in levels:
        primitive = getattr(level, FROM_INNER[kind])(primitive)
    return primitive


def has_history(x: Any) -> bool:
    """Whether any level knows how a tensor was computed; ``is_tracked`` concerns the tensor's level only."""
    if not x._dtype.has_gradient:
        return False
    k: Any = x._backend
    primitive = x._primitive
    while not k.is_tracked(primitive):
        inner = getattr(k, "inner_backend", None)
        if inner is None:
            return False
        primitive = k.unmapped(primitive) if k.__class__ is Batched else k.inner(primitive)
        k = inner
    return True


def constant(x: Any) -> Any:
    """A float tensor without its history at any level."""
    return wrap(_constant(x._backend, x._primitive), x._backend)


def _constant(k: Any, primitive: Any) -> Any:
    if isinstance(k, Batched):
        return k.over(primitive, lambda value: _constant(k.inner_backend, value))
    if not (is_autodiff(k) or isinstance(k, Forward)):
        return primitive
    return k.from_inner(_constant(k.inner_backend, k.inner(primitive)))


def _has_name(backend: AnyBackend) -> bool:
    """Whether a backend is the one that its spec names; those that transforms create are not."""
    try:
        return load_backend(backend.spec) == backend
    except BackburnError:
        return False


def common_backend(name: str, tensors: Iterable[Any]) -> AnyBackend:
    """The highest of the tensors' backends; all must be levels of one backend."""
    tensors = list(tensors)
    if not tensors:
        raise ArgumentError(f"{name}: at least one operand must be a tensor. bb.asarray(...) makes one")
    backend: AnyBackend = tensors[0]._backend
    for x in tensors[1:]:
        other = x._backend
        if other is backend:
            continue
        lower, upper = (backend, other) if _height(other) > _height(backend) else (other, backend)
        if levels_between(lower, upper) is None:
            raise _mismatch(name, tensors, backend, other)
        backend = upper
    return backend


def _mismatch(name: str, tensors: list[Any], first: AnyBackend, second: AnyBackend) -> BackendMismatchError:
    """The error for operands on two backends, neither of which wraps the other."""
    if innermost(first) == innermost(second) and not (_has_name(first) and _has_name(second)):
        return BackendMismatchError(
            f"{name}: the operands belong to different runs of a transform: {describe(tensors)}. One was "
            f"carried out of the function that made it: return it from there (has_aux=True lets grad "
            f"do so), or store its values, x.numpy(). Or it was captured from a level that the transform "
            f"does not wrap: move the arguments of the transform there first, with .to(...)"
        )
    # Advise a target that all operands can move to: tracked tensors cannot move to a backend with fewer levels.
    target = max(tensors, key=lambda t: (t.is_tracked, _height(t.backend))).backend
    while "[" in target.spec and (inner := inner_of(target)) is not None:  # levels of vmap have no name
        target = inner
    bases = {innermost(x.backend) for x in tensors}
    if len(bases) > 1 and len({k.spec for k in bases}) == 1:
        names = " and ".join(sorted({type(k).__name__ for k in bases}))
        return BackendMismatchError(
            f"{name}: the operands live on different backends with the same spec, {innermost(target).spec!r} "
            f"({names}): a spec names one backend, so give each class a different one"
        )
    return BackendMismatchError(
        f"{name}: the operands live on different backends: {describe(tensors)}. "
        f"Nothing is moved implicitly: write .to({target.spec!r}) for those that live elsewhere"
    )
