"""Misuses of the contract: mypy --strict and pyright refuse each line that ends in `# error`, and no other line."""

from __future__ import annotations

import backburn as bb
from backburn.autodiff import Autodiff, Gradients, Tracked
from backburn.backend import AutodiffBackend, Backend
from backburn_numpy import NumpyBackend, QuantizedArray
from backburn_numpy.backend import BoolArray, FloatArray, IntArray

k = NumpyBackend()
outer = Autodiff(k)
two = Autodiff(outer)


def plain(x: FloatArray, i: IntArray, b: BoolArray, q: QuantizedArray) -> None:
    k.bitwise_and(x, i)  # error
    k.bitwise_and(i, x)  # error
    k.bitwise_and(i, 1.5)  # error
    k.take(x, x, axis=0)  # error
    k.take(x, b, axis=0)  # error
    k.where(x, x, x)  # error
    k.where(b, x, i)  # error
    k.add(x, i)  # error
    k.add(x, b)  # error
    k.add(i, 1.5)  # error
    k.add(1.0, 2.0)  # error
    k.tanh(i)  # error
    k.tanh(b)  # error
    k.logical_not(i)  # error
    k.dequantize(x)  # error
    k.argmax(x, axis="0")  # error
    k.sum(b, axis=(0,))  # error
    k.sum(x, axis=0)  # error
    k.add(x=x, y=x)  # error
    k.backward(x)  # error
    k.inner(x)  # error
    k.inner_backend  # error
    k.ad(x, x)  # error


def tracked(t: Tracked[NumpyBackend], x: FloatArray, i: IntArray, b: BoolArray, q: QuantizedArray) -> None:
    grads = outer.backward(t)
    outer.add(x, x)  # error
    outer.add(t, x)  # error
    k.add(t, t)  # error
    outer.backward(x)  # error
    outer.backward(outer.argmax(t, axis=0))  # error
    outer.set_require_grad(outer.argmax(t, axis=0), True)  # error
    outer.inner(i)  # error
    outer.inner(x)  # error
    outer.int_inner(t)  # error
    outer.bool_inner(outer.argmax(t, axis=0))  # error
    outer.q_inner(t)  # error
    outer.from_inner(t)  # error
    outer.from_inner(i)  # error
    outer.int_from_inner(x)  # error
    outer.bool_from_inner(i)  # error
    outer.q_from_inner(x)  # error
    outer.grad(x, grads)  # error
    outer.grad(t, t)  # error
    outer.grad_replace(t, grads, t)  # error
    outer.grad_replace(t, grads, i)  # error
    outer.grad_replace(t, grads)  # error
    outer.grad(t, grads) + 1  # error
    two.backward(t)  # error
    two.add(t, t)  # error
    two.from_inner(x)  # error
    outer.grad(t, two.backward(two.from_inner(t)))  # error
    two.inner_backend.inner_backend.backward(x)  # error


Autodiff(3)  # error
Autodiff(NumpyBackend)  # error
Autodiff()  # error
wrong: Autodiff[Autodiff[NumpyBackend]] = outer  # error
plain_as_outer: NumpyBackend = outer  # error
no_autodiff: AutodiffBackend[FloatArray, IntArray, BoolArray, QuantizedArray, NumpyBackend, object] = k  # error
other_kinds: Backend[IntArray, IntArray, BoolArray, QuantizedArray] = k  # error


def wrong_result(x: FloatArray) -> FloatArray:
    return k.less(x, 0.0)  # error


def wrong_index(x: FloatArray) -> FloatArray:
    return k.argmax(x, axis=0)  # error


def leaks_inner(t: Tracked[NumpyBackend]) -> Tracked[NumpyBackend]:
    return outer.inner(t)  # error


def maybe_missing(t: Tracked[NumpyBackend], grads: Gradients[NumpyBackend]) -> FloatArray:
    return outer.grad(t, grads)  # error


class Wrong(Backend[FloatArray, IntArray, BoolArray, QuantizedArray]):
    def tanh(self, x: IntArray, /) -> IntArray:  # error
        return x

    def argmax(self, x: FloatArray | IntArray, /, *, axis: int, keepdims: bool = False) -> FloatArray:  # error
        raise NotImplementedError

    def logical_not(self, x: BoolArray, /, inplace: bool) -> BoolArray:  # error
        return x


def takes(f: bb.FloatTensor | None = None, i: bb.IntTensor | None = None, b: bb.BoolTensor | None = None) -> None: ...


def tensors(x: bb.FloatTensor, i: bb.IntTensor, anything: object) -> None:
    takes(f=bb.asarray([1, 2], dtype=bb.int64))  # error
    takes(i=bb.asarray(x))  # error
    takes(b=bb.asarray(i))  # error
    takes(f=bb.asarray(anything))  # error
    takes(f=bb.from_dlpack(anything))  # error


def gradients(x: bb.FloatTensor, i: bb.IntTensor, b: bb.BoolTensor, q: bb.QuantizedTensor, t: bb.Tensor) -> None:
    found = t.require_grad().backward()
    i.require_grad()  # error
    i.retain_grad()  # error
    i.detach()  # error
    i.backward()  # error
    i.grad(found)  # error
    i.grad_remove(found)  # error
    i.grad_replace(found, x)  # error
    b.require_grad()  # error
    (x > 0).backward()  # error
    q.require_grad()  # error
    q.grad(found)  # error
    x.argmax().backward()  # error
    x.astype(bb.int64).require_grad()  # error
    x.quantize().backward()  # error
    (i + 1).require_grad()  # error
    i.sum().backward()  # error
    x.grad(x)  # error


def complex_numbers(z: bb.ComplexTensor) -> None:
    _ = z < z  # error
    z % 2  # error
    z // 2.0  # error
    ~z  # error


def operators(x: bb.FloatTensor, i: bb.IntTensor, b: bb.BoolTensor, q: bb.QuantizedTensor, t: bb.Tensor) -> None:
    x[0] = 1.0  # error
    t[0] = 1.0  # error
    del t[0]  # error
    x + "1"  # error
    x // 1j  # error
    i + "1"  # error
    b * None  # error
    q - "1"  # error
    ~x  # error
    ~q  # error
    x & x  # error
    x | 1  # error
    1 ^ x  # error
    x << 1  # error
    x >> i  # error
    q & q  # error
    i & 1.5  # error
    t & 1.5  # error
    1.5 & i  # error
    -b  # error
    abs(b)  # error
    [1, 2][x]  # error
    range(b)  # error
    x.take(x, axis=0)  # error
    x.take(b, axis=0)  # error
    bb.take(i, x, axis=0)  # error
    bb.take_along_axis(i, q)  # error
    x.take(0, axis=0)  # error


def narrowed(x: bb.FloatTensor, i: bb.IntTensor, b: bb.BoolTensor, q: bb.QuantizedTensor, t: bb.Tensor) -> None:
    takes(i=x * 2)  # error
    takes(i=i / 2)  # error
    takes(i=i * x)  # error
    takes(f=i + i)  # error
    takes(f=i * 2)  # error
    takes(b=b + 1)  # error
    takes(f=x < x)  # error
    takes(f=t + 1.0)  # error
    takes(i=i + 0.5)  # error
    takes(f=x.argmax())  # error
    takes(f=i[0])  # error
    takes(i=b & b)  # error
    takes(b=x.T)  # error


class Model(bb.nn.Module):
    def __init__(self) -> None:
        self.first = bb.nn.Linear(2, 3)
        self.attention = bb.nn.MultiheadAttention(4, 2)

    def forward(self, x: bb.Tensor, scale: float = 1.0) -> bb.Tensor:
        self.first()  # error
        self.first("x")  # error
        self.first(x, x)  # error
        self.attention(x, casual=True)  # error
        return self.first(x) * scale


def modules(model: Model, x: bb.FloatTensor) -> None:
    model(x, "2")  # error
    model(x, size=2.0)  # error
    takes(f=model(x))  # error
    takes(i=model.first(x))  # error


def foreign(x: bb.FloatTensor, t: bb.Tensor) -> None:
    bb.sum(x, dim=0)  # error
    bb.mean(x, keepdim=True)  # error
    bb.softmax(x, dim=1)  # error
    bb.zeros(2, 3)  # error
    bb.asarray([1.0], requires_grad=True)  # error
    bb.random.normal((2,), 3.0)  # error
    bb.vmap(bb.exp, in_dims=0)  # error
    t.sum(0, True)  # error
    x.mean(0, True)  # error
    x.argmax(dim=0)  # error
    x.backward(create_graph=True)  # error
    x.squeeze(dim=0)  # error
    bb.summ(x)  # error
