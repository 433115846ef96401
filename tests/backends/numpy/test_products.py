"""Matrix products of the kernels, and the threads of NumPy's products."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import BASE, USABLE, needs_kernels, numbers, product_is_right, python, use_level

import backburn as bb
from backburn.errors import ShapeError
from backburn_numpy import compiled, tuning
from backburn_numpy.runtime import blas, gemm, threads

#: Sizes around those of tiles, panels, blocks of elements, and vectors; the last two pack columns in strips.
SIZES = [
    *[(2, 1, 2), (3, 5, 7), (14, 16, 32), (15, 17, 33), (29, 320, 31), (28, 321, 64), (113, 40, 130), (5, 700, 300)],
    *[(101, 330, 300), (205, 33, 530)],
]

pytestmark = needs_kernels


@pytest.fixture(params=USABLE)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the kernel of each instruction set for products of any size, in three threads."""
    use_level(monkeypatch, request.param)
    monkeypatch.setattr(tuning, "MIN_GEMM_PRODUCTS", {request.param: 1})
    monkeypatch.setattr(tuning, "MIN_TRANSPOSED_GEMM_PRODUCTS", 1)
    before = threads.num_threads()
    threads.set_num_threads(3)
    yield
    threads.set_num_threads(before)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("height", "depth", "width"), SIZES)
def test_products_of_any_layout(height: int, depth: int, width: int, dtype: str) -> None:
    """Row order, column order, gaps and reversed rows; also rows a page apart, which are copied."""
    for x, y in itertools.product(layouts((height, depth), dtype), layouts((depth, width), dtype)):
        assert product_is_right(x, y)


def layouts(shape: tuple[int, int], dtype: str) -> list[Any]:
    """The same matrix in row order, in column order, with gaps, reversed, and with rows or columns a page apart."""
    x = numbers(*shape, seed=sum(shape)).astype(dtype)
    gaps, pages = np.zeros((shape[0], 2 * shape[1]), dtype), np.zeros((max(shape), 1024), dtype)
    gaps[:, ::2] = x
    turned = pages.copy()
    pages[: shape[0], : shape[1]], turned[: shape[1], : shape[0]] = x, x.T
    whole = [x, x.T.copy().T, gaps[:, ::2], x[::-1].copy()[::-1], pages[: shape[0], : shape[1]]]
    return [*whole, turned[: shape[1], : shape[0]].T]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("leads", [((3,), (3,)), ((2, 3), (2, 3)), ((4, 1), (1,)), ((3,), ()), ((), (2, 2))])
def test_stacks(leads: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = numbers(*leads[0], 9, 20), numbers(*leads[1], 20, 35, seed=1)
    for left, right in ((x, y), (x.swapaxes(-1, -2).copy().swapaxes(-1, -2), y)):
        product = gemm.multiply(left, right)
        assert product is not None
        assert product.shape == (x.astype(np.float64) @ y).shape
        np.testing.assert_allclose(product, x.astype(np.float64) @ y, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small")
def test_numpy_multiplies_stacks_without_a_common_stride() -> None:
    y = numbers(4, 3, 20, 35)
    for x in (numbers(4, 5, 9, 20)[:, :3], numbers(1, 3, 9, 20), numbers(4, 1, 9, 20)):
        assert gemm.multiply(x, y) is None
        np.testing.assert_allclose(BASE.matmul(x, y), x @ y.astype(np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small")
def test_nan_and_infinities_stay_in_their_rows_and_columns() -> None:
    x, y = numbers(20, 40), numbers(40, 50)
    x[3, 7], x[5, 0], y[2, 11] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        expected = x.astype(np.float64) @ y.astype(np.float64)
    for a, b in ((x, y), (np.asfortranarray(x), np.asfortranarray(y))):
        found: Any = gemm.multiply(a, b)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_array_equal(np.isposinf(found), np.isposinf(expected))


@pytest.mark.parametrize("level", USABLE)
def test_products_do_not_depend_on_threads_and_layouts(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_level(monkeypatch, level)
    monkeypatch.setattr(tuning, "MIN_GEMM_PRODUCTS", {level: 1})
    monkeypatch.setattr(tuning, "MIN_TRANSPOSED_GEMM_PRODUCTS", 1)
    before = threads.num_threads()
    try:
        for height, depth, width in ((130, 700, 210), (33, 64, 500), (500, 64, 33)):
            found: list[Any] = []
            for count in (1, 2, 4):
                threads.set_num_threads(count)
                for x, y in itertools.product(layouts((height, depth), "float32"), layouts((depth, width), "float32")):
                    found.append(gemm.multiply(x, y))
            for other in found[1:]:
                np.testing.assert_array_equal(found[0].view(np.uint32), other.view(np.uint32))
    finally:
        threads.set_num_threads(before)


@pytest.mark.skipif(compiled.level() not in tuning.MIN_GEMM_PRODUCTS, reason="NumPy computes the products")
def test_convolutions_and_attention_do_not_depend_on_threads() -> None:
    """The split into tasks depends only on shapes."""
    options: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    x, weight, grad = numbers(32, 16, 28, 28), numbers(24, 16, 3, 3), numbers(32, 24, 28, 28)
    heads, other = numbers(3, 4, 200, 64), numbers(3, 4, 200, 64, seed=1)
    found, before = [], threads.num_threads()
    try:
        for count in (1, 2, 4):
            threads.set_num_threads(count)
            convolved = BASE.conv(x, weight, **options)
            transposed = BASE.conv_transpose(grad, weight, output_padding=(0, 0), **options)
            attended = BASE.scaled_dot_product_attention(heads, other, heads, causal=True)
            backward = BASE.scaled_dot_product_attention_backward(other, heads, other, heads, causal=True)
            found.append([convolved, transposed, attended, *backward])
    finally:
        threads.set_num_threads(before)
    for results in found[1:]:
        for ours, first in zip(results, found[0], strict=True):
            np.testing.assert_array_equal(ours.view(np.uint32), first.view(np.uint32))


@pytest.mark.skipif(compiled.level() not in tuning.MIN_GEMM_PRODUCTS, reason="NumPy computes the products")
@pytest.mark.parametrize(
    ("images", "outputs", "size", "stride", "groups"),
    [
        ((32, 16, 28, 28), 24, (3, 3), 1, 1), ((64, 1, 28, 28), 16, (3, 3), 1, 1), ((3, 96, 7, 7), 200, (3, 3), 1, 1),
        ((40, 24, 20, 20), 70, (1, 1), 1, 1), ((2, 48, 9, 9), 160, (1, 1), 1, 1), ((16, 64, 15, 15), 64, (3, 3), 2, 2),
        ((33, 1, 30, 30), 3, (5, 5), 1, 1), ((2, 3, 64, 64), 40, (7, 7), 2, 1), ((1, 20, 40, 40), 33, (3, 3), 1, 1),
    ],
)  # fmt: skip
def test_gradients_of_weights_do_not_depend_on_threads(
    images: Any, outputs: int, size: Any, stride: int, groups: int
) -> None:
    """With many and few images and channels, windows of one element, strides, and groups."""
    pads = tuple((n // 2, n // 2) for n in size)
    options = (size, (stride, stride), pads, (1, 1), groups)
    x = numbers(*images)
    grad = numbers(images[0], outputs, *((n - 1) // stride + 1 for n in images[2:]), seed=1)
    found, before = [], threads.num_threads()
    try:
        for count in (1, 2, 3, 4):
            threads.set_num_threads(count)
            found.append(BASE.conv_weight_backward(x, grad, *options))
    finally:
        threads.set_num_threads(before)
    expected = BASE.conv_weight_backward(x.astype(np.float64), grad.astype(np.float64), *options)
    np.testing.assert_allclose(found[0], expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("level", USABLE)
def test_sgemm_for_other_kernels(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the arguments of ``cblas_sgemm``, and reads the output only if ``beta`` is not 0."""
    use_level(monkeypatch, level)
    kernel: Any = compiled.kernel("sgemm")
    a, b = numbers(20, 30), numbers(30, 40)
    for turn_a, turn_b, alpha, beta in itertools.product((False, True), (False, True), (1.0, 0.5), (0.0, 1.0)):
        x, y = (np.ascontiguousarray(t.T) if turn else t for t, turn in ((a, turn_a), (b, turn_b)))
        out = np.full((20, 50), 2.0 if beta else np.nan, np.float32)
        kinds = (112 if turn_a else 111), (112 if turn_b else 111)
        at = (compiled.address(t) for t in (x, y, out))
        kernel(101, *kinds, 20, 40, 30, alpha, next(at), x.shape[1], next(at), y.shape[1], beta, next(at), 50)
        np.testing.assert_allclose(out[:, :40], alpha * (a @ b) + 2 * beta, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(out[:, 40:], 2.0 if beta else np.nan)


@pytest.mark.parametrize("level", USABLE)
@pytest.mark.parametrize("inputs", [1, 15, 16, 33, 48, 250])
def test_few_rows(level: str, inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without gaps between rows, in one thread and in three."""
    use_level(monkeypatch, level)
    monkeypatch.setattr(tuning, "MIN_SMALL_M_ELEMENTS", 1)
    for count, gap in itertools.product((1, 2, 3, 4), (0, 5)):
        x, w = numbers(count, inputs), numbers(301, inputs + gap)[:, :inputs]
        found = gemm.multiply_small_m(x, w.T)
        assert found is not None
        exact, sizes = x.astype(np.float64) @ w.T, np.abs(x) @ np.abs(w).T
        assert (np.abs(found - exact) <= np.finfo(np.float32).eps * np.sqrt(inputs) * sizes).all()
        before = threads.num_threads()
        threads.set_num_threads(3)
        again = gemm.multiply_small_m(x, w.T)
        threads.set_num_threads(before)
        assert np.array_equal(np.asarray(again), found)
    w[7] = np.nan
    x[0] = np.inf
    strange = gemm.multiply_small_m(x, w.T)
    assert strange is not None
    assert np.isnan(strange[:, 7]).all()
    assert not np.isfinite(strange[0]).any()
    assert np.isfinite(np.delete(strange[1:], 7, 1)).all()
    for others in ((x, numbers(inputs, 301)), (x.astype(np.float64), w.T), (numbers(5, inputs), w.T)):
        assert inputs == 1 or gemm.multiply_small_m(*others) is None


@pytest.mark.parametrize("level", USABLE)
@pytest.mark.parametrize("size", [3, 16, 64, 100])
def test_attention_of_few_queries(level: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One to five queries; heads with shared or separate keys and values; masked keys at the end."""
    use_level(monkeypatch, level)
    keys, values = numbers(2, 3, 1, 70, size), numbers(2, 3, 1, 70, size, seed=1)
    for heads, queries in ((1, 1), (2, 1), (5, 1), (2, 3), (2, 4), (2, 5)):
        query = numbers(2, 3, heads, queries, size, seed=2) / np.float32(10)
        seen = numbers(2, 1, heads, queries, 70, seed=3) > 0
        seen[..., 40:] = False
        seen[0, :, 0] = False  # no key is visible
        added = np.where(seen, numbers(queries, 70, seed=4), -np.inf).astype(np.float32)
        key, value = (np.broadcast_to(x, (2, 3, heads, 70, size)) for x in (keys, values))
        for mask in (None, seen, seen[:1, :, :1], added):
            found = BASE.scaled_dot_product_attention(query, key, value, mask, scale=0.3)
            scores = 0.3 * (query.astype(np.float64) @ keys.swapaxes(3, 4))
            if mask is not None:
                scores = scores + mask if mask.dtype != bool else np.where(mask, scores, -np.inf)
            top = scores.max(-1, keepdims=True)
            weights = np.where(scores == -np.inf, 0, np.exp(scores - np.where(top == -np.inf, 0, top)))
            expected = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ values
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def test_mismatched_shapes_are_rejected() -> None:
    with pytest.raises(ShapeError, match="inner dimensions differ"):
        bb.matmul(bb.zeros((300, 300)), bb.zeros((301, 300)))
    with pytest.raises(ValueError, match="broadcast"):
        BASE.matmul(numbers(3, 200, 200), numbers(2, 200, 200))


# ---- threads ----


@pytest.mark.skipif(
    compiled.level() not in tuning.MIN_GEMM_PRODUCTS or not blas.can_be_single(), reason="needs both libraries"
)
def test_numpy_s_products_keep_their_threads() -> None:
    """While this thread computes products, convolutions and attention, and after errors."""
    assert blas._functions is not None
    count = blas._functions[0]
    before, wrong, ended = count(), [], threading.Event()
    a = numbers(200, 200)
    expected = a @ a

    def multiply() -> None:
        while not ended.is_set():
            if count() != before or not np.array_equal(a @ a, expected):
                wrong.append(count())

    other = threading.Thread(target=multiply)
    other.start()
    try:
        for _ in range(20):
            step()
            with pytest.raises(ShapeError):
                bb.matmul(bb.zeros((300, 300)), bb.zeros((301, 300)))
    finally:
        ended.set()
        other.join()
    assert not wrong
    assert count() == before


def step() -> None:
    """A step with products, a convolution and attention, forward and back."""
    x = bb.asarray(numbers(256, 256)).require_grad()
    image = bb.asarray(numbers(8, 16, 28, 28)).require_grad()
    heads = bb.asarray(numbers(4, 4, 64, 32)).require_grad()
    weight = bb.asarray(numbers(32, 16, 3, 3)).require_grad()
    attended = bb.nn.functional.scaled_dot_product_attention(heads, heads, heads)
    found = bb.nn.functional.conv(image, weight)
    loss = (x @ x.T).sum() + found.sum() + attended.sum()
    loss.backward()


@pytest.mark.skipif(compiled.level() not in tuning.MIN_GEMM_PRODUCTS, reason="NumPy computes the products")
def test_products_after_a_fork_and_an_interrupt() -> None:
    """With two threads, results are the same in a forked child, and after Ctrl-C has ended a product."""
    found = python("-c", PROGRAM)
    assert (found.returncode, found.stdout.split(), found.stderr) == (0, ["child", "interrupted", "parent"], "")


PROGRAM = """
import os, signal, threading, time
import numpy as np
import backburn as bb
from backburn_numpy.runtime import threads
threads.set_num_threads(2)
x = np.arange(300 * 300, dtype=np.float32).reshape(300, 300) % 17
k = bb.load_backend("numpy")
expected = k.matmul(x, x)
if hasattr(os, "fork"):
    if os.fork() == 0:
        same = np.array_equal(k.matmul(x, x), expected)
        os.write(1, b"child\\n" if same else b"wrong\\n")
        os._exit(0)
    os.wait()
else:
    print("child", flush=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
try:
    while True:
        k.matmul(x, x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert np.array_equal(k.matmul(x, x), expected)
print("parent", flush=True)
"""
