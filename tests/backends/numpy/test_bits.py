"""Bitwise equal results: of kernels compiled by GCC and by zig, and with any number of threads."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import BASE, USABLE, use_level

from backburn.base.dtypes import as_dtype
from backburn_numpy import compiled
from backburn_numpy.compiled import build
from backburn_numpy.runtime import threads

Work = Callable[[], Any]

#: Shapes of matrices: narrow, short, long and very long rows, and one that several threads share.
SHAPES = ((4000, 10), (1500, 33), (300, 1000), (7, 30_001), (20_000, 64))


def real(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def reductions(x: Any) -> Iterator[tuple[str, Work]]:
    one_zero = 1 + x / 100
    one_zero[0, 0] = 0
    zeros = np.where(np.abs(x) < 1, np.copysign(0, x), -np.abs(x)).astype(x.dtype)
    for axis in ((0,), (1,), (0, 1)):
        for name in ("sum", "mean", "var", "max", "min", "vector_norm"):
            yield f"{name} {axis}", partial(getattr(BASE, name), x, axis=axis)
        yield f"prod {axis}", partial(BASE.prod, 1 + x / 100, axis=axis)
        yield f"prod_of_others {axis}", partial(BASE.prod_of_others, 1 + x / 100, axis=axis)
        yield f"prod_of_others, a zero {axis}", partial(BASE.prod_of_others, one_zero, axis=axis)
        yield f"max of zeros {axis}", partial(BASE.max, zeros, axis=axis)
        yield f"min of zeros {axis}", partial(BASE.min, -zeros, axis=axis)


def rows_and_columns(x: Any) -> Iterator[tuple[str, Work]]:
    grad = real(*x.shape, seed=1, dtype=x.dtype)
    for axis in (0, 1):
        for name in ("cumulative_sum", "cumulative_prod", "cummax", "diff", "softmax", "log_softmax"):
            yield f"{name} {axis}", partial(getattr(BASE, name), x, axis=axis)
        yield f"logsumexp {axis}", partial(BASE.logsumexp, x, axis=(axis,))
        yield f"softmax_backward {axis}", partial(BASE.softmax_backward, grad, np.exp(x), axis=axis)
        yield f"log_softmax_backward {axis}", partial(BASE.log_softmax_backward, grad, x, axis=axis)
        count, length = x.shape[1 - axis], x.shape[axis]
        labels, slopes = np.arange(count) * 7 % length, real(count, dtype=x.dtype)
        yield f"label_cross_entropy {axis}", partial(BASE.label_cross_entropy, x, labels, axis=axis)
        backward = partial(BASE.label_cross_entropy_backward, slopes, x, labels, axis=axis)
        yield f"label_cross_entropy_backward {axis}", backward


def norms(x: Any) -> Iterator[tuple[str, Work]]:
    grad, scale = real(*x.shape, seed=1, dtype=x.dtype), real(x.shape[1], dtype=x.dtype)
    yield "layer_norm", partial(BASE.layer_norm, x, scale, scale, axis=(1,))
    yield "rms_norm", partial(BASE.rms_norm, x, scale, axis=(1,))
    for axis in ((0,), (1,)):
        yield f"layer_norm_backward {axis}", partial(BASE.layer_norm_backward, grad, x, scale, axis, 1e-5)
    yield "rms_norm_backward", partial(BASE.rms_norm_backward, grad, x, scale, (1,), 1e-5)
    yield "batch_norm_training", partial(BASE.batch_norm_training, x, scale, scale, axis=1)
    if len(x) % 4 == 0:
        image, of_channels = x.reshape(-1, 4, 1, x.shape[1]), real(1, 4, 1, 1, dtype=x.dtype)
        yield "batch_norm_training of images", partial(BASE.batch_norm_training, image)
        yield (
            "layer_norm_backward of images",
            partial(BASE.layer_norm_backward, image, image, of_channels, (0, 2, 3), 1e-5),
        )


def steps(x: Any) -> Iterator[tuple[str, Work]]:
    grad, square = real(*x.shape, seed=1, dtype=x.dtype), np.abs(real(*x.shape, seed=2, dtype=x.dtype))
    for decoupled in (False, True):
        step = partial(BASE.adam_step, x, grad, grad, square, weight_decay=0.1, decoupled=decoupled)
        yield f"adam_step {decoupled}", step
    for nesterov in (False, True):
        update = partial(BASE.sgd_step, x, grad, grad, momentum=0.9, nesterov=nesterov, weight_decay=0.1)
        yield f"sgd_step {nesterov}", update


def elements(x: Any) -> Iterator[tuple[str, Work]]:
    for name in ("lgamma", "digamma", "exp", "log1p", "sin", "tanh", "erf", "gelu", "silu", "softplus", "log_sigmoid"):
        yield name, partial(getattr(BASE, name), 3 * x)


def layers() -> Iterator[tuple[str, Work]]:
    for inputs, outputs, size, kernel, step, groups in (
        *((3, 16, 33, 3, 1, 1), (16, 32, 28, 3, 1, 1), (32, 32, 20, 1, 1, 1), (16, 16, 30, 5, 2, 1)),
        *((32, 32, 17, 3, 1, 32), (8, 12, 40, 3, 2, 2), (1, 13, 28, 3, 1, 1)),
    ):
        x, weight = real(2, inputs, size, size), real(outputs, inputs // groups, kernel, kernel)
        options: dict[str, Any] = {
            "stride": (step, step),
            "padding": ((1, 1), (1, 1)),
            "dilation": (1, 1),
            "groups": groups,
        }
        grad = np.ones_like(BASE.conv(x, weight, **options)) * real(2, outputs, 1, 1)
        name = f"{inputs} {outputs} {kernel} {step} {groups}"
        yield f"conv {name}", partial(BASE.conv, x, weight, real(outputs), **options)
        yield (
            f"conv_weight_backward {name}",
            partial(BASE.conv_weight_backward, x, grad, size=(kernel, kernel), **options),
        )
        back = partial(BASE.conv_transpose, grad, weight, output_padding=(0, 0), **options)
        yield f"conv_transpose {name}", back
    query, key, value = real(2, 4, 70, 32), real(2, 4, 90, 32, seed=1), real(2, 4, 90, 32, seed=2)
    for queries in (1, 3):
        attend = partial(BASE.scaled_dot_product_attention, query[:, :, :queries], key, value, scale=0.2)
        yield f"attention of {queries}", attend
    for causal in (False, True):
        attend = partial(BASE.scaled_dot_product_attention, query, key, value, causal=causal, scale=0.2)
        yield f"attention {causal}", attend
        backward = BASE.scaled_dot_product_attention_backward
        yield f"attention backward {causal}", partial(backward, query, query, key, value, causal=causal, scale=0.2)
    image = real(4, 16, 40, 40)
    yield "avg_pool", partial(BASE.avg_pool, image, size=(3, 3), stride=(2, 2), padding=((1, 1), (1, 1)))
    for mode in ("linear", "cubic"):
        yield f"interpolate {mode}", partial(BASE.interpolate, image, size=(57, 63), mode=mode)
    yield "matmul", partial(BASE.matmul, real(90, 200), real(200, 110))
    for count, inputs in itertools.product((1, 3), (100, 384)):
        few, weight = real(count, inputs), real(200, inputs, seed=1)
        yield f"linear {few.shape}", partial(BASE.linear, few, weight)
        for scheme in ("qint8_symmetric_channel0_float32", "quint8_affine_block32_float16",
                       "qint4_affine_block32_float16", "qint4_symmetric_channel0_float32"):  # fmt: skip
            weight_of = BASE.quantize(weight, dtype=as_dtype(scheme))  # type: ignore[arg-type]
            yield f"quantized_linear {few.shape} {scheme}", partial(BASE.quantized_linear, few, weight_of)
    decay, state = real(6, 50, 70), real(6, 50, 70, seed=1)
    yield "ssm_scan", partial(BASE.ssm_scan, decay, state, state, axis=1)
    yield "ssm_scan of rows", partial(BASE.ssm_scan, decay, 1.0, state, axis=2, reverse=True)


def sequences(dtype: Any) -> Iterator[tuple[str, Work]]:
    """Recurrent layers of several sizes, and sums over alignments."""
    for steps, examples, size in (*((5, 4, size) for size in (1, 3, 7, 8, 17, 64)), (8, 29, 61), (9, 67, 330)):
        hidden, weight = real(examples, size, dtype=dtype), real(4 * size, size, dtype=dtype) / 4
        projected, hiddens = (real(steps, examples, count * size, dtype=dtype) for count in (4, 1))
        weight /= max(1, size / 16)
        yield f"lstm {size}", partial(BASE.lstm, projected, hidden, hidden, weight)
        yield f"lstm_backward {size}", partial(BASE.lstm_backward, weight, hidden, hiddens, abs(projected), hiddens)
        projected, gates, weight = projected[:, :, size:].copy(), abs(projected), weight[size:]
        yield f"gru {size}", partial(BASE.gru, projected, hidden, weight)
        yield f"gru_backward {size}", partial(BASE.gru_backward, weight, hidden, hiddens, gates, hiddens)
    for length, classes, count in ((1, 3, 1), (7, 10, 3), (40, 40, 9), (50, 5, 16)):
        logs = BASE.log_softmax(real(length, examples, classes, dtype=dtype), axis=2)
        labels = np.arange(examples * count).reshape(examples, count) * 7 % (classes - 1) + 1
        sizes = labels, np.arange(examples) % length + 1, np.arange(examples) % count + 1
        yield f"ctc_loss {length} {classes}", partial(BASE.ctc_loss, logs, *sizes)
        grad = real(examples, dtype=dtype)
        yield f"ctc_loss_backward {length} {classes}", partial(BASE.ctc_loss_backward, grad, logs, *sizes)


#: Operations on a matrix whose results do not depend on the compiler or the number of threads.
OF_MATRICES = (reductions, rows_and_columns, norms, steps, elements)


def works(x: Any) -> Iterator[tuple[str, Work]]:
    for family in OF_MATRICES:
        yield from family(x)


def bits(work: Work) -> list[bytes]:
    found = work()
    return [np.ascontiguousarray(part).tobytes() for part in (found if isinstance(found, tuple) else (found,))]


# ---- two compilers ----


@pytest.fixture(scope="module")
def made_by_zig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kernels of the best level compiled by zig, if those in use are GCC's."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed")
    if " by GCC " not in BASE.libraries["kernels"]:
        pytest.skip("the kernels in use are not GCC's")
    folder = tmp_path_factory.mktemp("zig")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKBURN_COMPILED", "zig")
        build.build(folder, only_best=True)
    return folder


def assert_zig_makes_the_same(found: dict[str, Work], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_count", 1)
    by_gcc = {name: bits(work) for name, work in found.items()}
    use_level(monkeypatch, str(compiled.level()), folder)
    assert compiled.describe().split()[4] == "zig"
    assert [name for name, work in found.items() if bits(work) != by_gcc[name]] == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operations_of_two_compilers(
    shape: Any, dtype: Any, made_by_zig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources determine which multiply-adds are fused, and the order of summation."""
    assert_zig_makes_the_same(dict(works(real(*shape, dtype=dtype))), made_by_zig, monkeypatch)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_short_rows_of_two_compilers(dtype: Any, made_by_zig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns of every length up to a few vectors, because remainders are separate code."""
    found = {
        f"{name} of {shape}": work
        for length in (*range(1, 71), 100)
        for shape in ((19, length), (length, 19))
        for family in (reductions, rows_and_columns, norms)
        for name, work in family(real(*shape, dtype=dtype))
    }
    assert_zig_makes_the_same(found, made_by_zig, monkeypatch)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sequences_of_two_compilers(dtype: Any, made_by_zig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_zig_makes_the_same(dict(sequences(dtype)), made_by_zig, monkeypatch)


def test_layers_of_two_compilers(made_by_zig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_zig_makes_the_same(dict(layers()), made_by_zig, monkeypatch)


#: Element-wise kernels that no operation calls directly or with these operands.
ELEMENTWISE = (
    *(
        "exp",
        "log",
        "log1p",
        "expm1",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "arctan",
        "arctan_double",
        "arctan2",
        "arctan2_double",
        "tanh",
        "erf",
        "erfc",
        "sqrt",
        "reciprocal",
        "round",
    ),
    *("add", "multiply", "divide", "remainder", "fmod", "floor_divide", "multiply_add", "clamp"),
    *("sigmoid", "silu", "gelu", "gelu_tanh", "softplus", "log_sigmoid", "lgamma", "digamma"),
    *("sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward", "gelu_tanh_backward", "relu_backward"),
    *("exp_double", "log_double", "log1p_double", "sin_double", "cos_double", "tan_double", "remainder_double"),
)


def test_element_wise_kernels_of_two_compilers(made_by_zig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_zig_makes_the_same({name: partial(results, name) for name in ELEMENTWISE}, made_by_zig, monkeypatch)


def results(name: str) -> tuple[Any, ...]:
    """The arrays of an element-wise kernel after calls: its results, and its unchanged operands.

    Most calls have fewer elements than a vector has lanes, because remainders are separate code.
    """
    found: Any = compiled.kernel(name)
    assert found is not None, name
    rng, count = np.random.default_rng(1), 20_001
    dtype = np.float64 if name.endswith("_double") else np.float32
    arrays = [(rng.normal(size=count) * 3).astype(dtype) for kind in found.argtypes if kind is ctypes.c_void_p]
    assert len(arrays) == len(found.argtypes) - 1, name
    starts = [0, *range(count // 2, count, 15), count]
    for start, stop in itertools.pairwise(starts):
        found(*(compiled.address(x[start:]) for x in arrays), stop - start)
    return tuple(arrays)


# ---- several threads ----


@pytest.mark.parametrize(
    "shape",
    [*SHAPES, *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((1000, 2000), (20, 100_000)))],
    ids=str,
)
@pytest.mark.parametrize("level", USABLE)
def test_threads_do_not_change_results(level: str, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes alone determine where norms, sums, variances, running sums and so on are split."""
    use_level(monkeypatch, level)
    assert_threads_make_the_same(dict(works(real(*shape))))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("level", USABLE)
def test_threads_do_not_change_sequences(level: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads divide the rows."""
    use_level(monkeypatch, level)
    assert_threads_make_the_same(dict(sequences(dtype)))


def assert_threads_make_the_same(found: dict[str, Work]) -> None:
    before = threads.num_threads()
    try:
        threads.set_num_threads(1)
        alone = {name: bits(work) for name, work in found.items()}
        for count in (2, 4):
            threads.set_num_threads(count)
            assert [name for name, work in found.items() if bits(work) != alone[name]] == [], count
    finally:
        threads.set_num_threads(before)
