"""The contract as type checkers see it: mypy --strict and pyright accept every line of this file."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import backburn as bb
from backburn.autodiff import Autodiff, Gradients, Tracked
from backburn.autodiff.base import IntOf
from backburn.backend import AnyBackend, AutodiffBackend, Backend
from backburn.backend.contract import BK
from backburn.ops.types import B, F, I, Q
from backburn_numpy import NumpyBackend, QuantizedArray
from backburn_numpy.backend import BoolArray, FloatArray, IntArray

k = NumpyBackend()
outer = Autodiff(NumpyBackend())
two = Autodiff(Autodiff(NumpyBackend()))
assert_type(outer, Autodiff[NumpyBackend])
assert_type(outer.inner_backend, NumpyBackend)
assert_type(two, Autodiff[Autodiff[NumpyBackend]])
assert_type(two.inner_backend.inner_backend, NumpyBackend)


def plain(x: FloatArray, i: IntArray, b: BoolArray) -> None:
    assert_type(k.add(x, x), FloatArray)
    assert_type(k.add(2.0, x), FloatArray)
    assert_type(k.add(i, 2), IntArray)
    assert_type(k.less(x, 2.0), BoolArray)
    assert_type(k.argmax(i, axis=0), IntArray)
    assert_type(k.where(b, i, i), IntArray)
    assert_type(k.take(x, i, axis=0), FloatArray)
    assert_type(k.quantize(x), QuantizedArray)


def tracked(x: FloatArray, i: IntArray) -> None:
    t = outer.from_inner(x)
    assert_type(t, Tracked[NumpyBackend])
    assert_type(outer.inner(t), FloatArray)
    assert_type(outer.add(t, 1.0), Tracked[NumpyBackend])
    j = outer.int_from_inner(i)
    assert_type(j, IntOf[NumpyBackend])
    assert_type(outer.int_inner(j), IntArray)
    assert_type(outer.bool_inner(outer.less(t, t)), BoolArray)
    assert_type(outer.q_inner(outer.quantize(t)), QuantizedArray)
    assert_type(outer.take(t, j, axis=0), Tracked[NumpyBackend])
    grads = outer.backward(t)
    assert_type(grads, Gradients[NumpyBackend])
    assert_type(outer.grad(t, grads), FloatArray | None)
    assert_type(outer.grad_remove(t, grads), FloatArray | None)
    outer.grad_replace(t, grads, x)


def nested(x: FloatArray) -> None:
    t = two.from_inner(outer.from_inner(x))
    assert_type(t, Tracked[Autodiff[NumpyBackend]])
    assert_type(two.inner(t), Tracked[NumpyBackend])
    assert_type(two.inner_backend.inner(two.inner(t)), FloatArray)
    assert_type(two.add(t, t), Tracked[Autodiff[NumpyBackend]])
    assert_type(two.grad(t, two.backward(t)), Tracked[NumpyBackend] | None)


def annotated(a: Autodiff[NumpyBackend], w: Tracked[NumpyBackend]) -> FloatArray:
    return a.inner(a.add(w, w))


def generic(any_backend: Backend[F, I, B, Q], x: F) -> I:
    return any_backend.argmax(any_backend.add(x, 1.0), axis=0)


assert_type(generic(NumpyBackend(), np.ones(3)), IntArray)


class MyFloat:
    shape: tuple[int, ...] = ()


class MyInt(MyFloat): ...


class MyBool(MyFloat): ...


class MyQuantized(MyFloat): ...


class MyBackend(Backend[MyFloat, MyInt, MyBool, MyQuantized]):
    """A third-party backend."""

    @property
    def spec(self) -> str:
        return "mine"

    def tanh(self, x: MyFloat, /) -> MyFloat:
        return x


mine = Autodiff(MyBackend())
assert_type(mine, Autodiff[MyBackend])
assert_type(mine.inner(mine.from_inner(MyFloat())), MyFloat)
assert_type(mine.int_inner(mine.int_from_inner(MyInt())), MyInt)


def loop(a: Autodiff[BK], w: Tracked[BK]) -> Gradients[BK]:
    return a.backward(a.tanh(w))


def looped(t: Tracked[NumpyBackend]) -> None:
    assert_type(loop(outer, t), Gradients[NumpyBackend])


any_outer: AutodiffBackend[Any, Any, Any, Any, Any, Any] = outer
any_backend: AnyBackend = two


def tensors(x: bb.FloatTensor, anything: object) -> None:
    assert_type(bb.asarray(anything, dtype=bb.float32), bb.FloatTensor)
    assert_type(bb.asarray(anything, dtype=bb.int8), bb.IntTensor)
    assert_type(bb.asarray(anything, dtype=bb.bool), bb.BoolTensor)
    assert_type(bb.asarray(anything), bb.Tensor)
    assert_type(bb.asarray(x), bb.FloatTensor)
    assert_type(bb.asarray(x, backend="numpy"), bb.FloatTensor)
    assert_type(bb.asarray(x, dtype="int8"), bb.Tensor)
    assert_type(bb.from_dlpack(anything), bb.Tensor)


def gradients(w: bb.FloatTensor, t: bb.Tensor) -> None:
    assert_type(t.require_grad(), bb.FloatTensor)
    assert_type(t.detach(), bb.FloatTensor)
    found = (w * w).sum().backward()
    assert_type(found, Gradients[Any])
    assert_type(w.grad(found), bb.FloatTensor | None)
    assert_type(t.grad(t.backward()), bb.FloatTensor | None)


def functions() -> None:
    x = bb.ones((2, 3))
    assert_type(x, bb.FloatTensor)
    assert_type(bb.sum(x), bb.FloatTensor)
    assert_type(bb.exp(x), bb.FloatTensor)
    assert_type(bb.matmul(x, x.mT), bb.Tensor)
    assert_type(x < 1.0, bb.BoolTensor)
    assert_type(bb.argmax(x), bb.IntTensor)
    assert_type(bb.zeros(2, dtype=bb.int32), bb.IntTensor)
    assert_type(bb.arange(1, 3), bb.IntTensor)
    assert_type(bb.arange(3, dtype=bb.int32), bb.IntTensor)
    assert_type(bb.arange(3, dtype=bb.float32), bb.FloatTensor)
    assert_type(bb.arange(0.0, 3), bb.Tensor)
    assert_type(bb.linalg.det(x), bb.FloatTensor)
    assert_type(bb.nn.Linear(2, 3), bb.nn.Linear)
