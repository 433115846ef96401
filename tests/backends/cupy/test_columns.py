"""Convolutions of the CuPy backend without cuDNN, as products of columns, on the stand-in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled

from backburn.backend.registry import load_backend
from backburn.base import dtypes
from backburn.ops.conv import convolved

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")

NUMPY: Any = load_backend("numpy")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


@pytest.fixture
def k(without_cudnn: None) -> Any:
    from backburn_cupy import CupyBackend

    return CupyBackend()


@pytest.fixture
def made(k: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of examples whose columns each call copies or adds."""
    from backburn_cupy import conv_columns
    from backburn_cupy.kernels import columns

    found: list[int] = []
    for name in ("columns", "add_columns"):
        monkeypatch.setattr(conv_columns, name, noted(found, getattr(columns, name)))
    return found


def test_positions_beyond_32_bits_are_not_supported(k: Any, cupy: Any) -> None:
    from backburn_cupy.conv_columns import supports

    x, weight = cupy.zeros((1, 1, 1)), cupy.zeros((1, 1, 3))
    assert supports(k, (3,), cupy.broadcast_to(x, (1, 1, 2**30)), weight)
    assert not supports(k, (3,), cupy.broadcast_to(x, (1, 1, 2**31)), weight)


def noted(found: list[int], function: Any) -> Any:
    def call(on: Any, x: Any, windows: Any, *out: Any) -> Any:
        found.append((out or (x,))[0].shape[0])
        return function(on, x, windows, *out)

    return call


def compare(
    k: Any, dtype: str, x: Any, weight: Any, *, stride: Any, padding: Any, dilation: Any, groups: int = 1,
    extra: Any = None,
) -> None:  # fmt: skip
    """Compare the three operations, two of them with a bias, on ``k`` with NumPy in float64."""
    random, size, wanted = np.random.default_rng(3), weight.shape[2:], dtypes.as_dtype(dtype)
    ways: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    grad = random.normal(size=convolved(x.shape, weight.shape, **ways))
    biases = random.normal(size=weight.shape[0]), random.normal(size=x.shape[1])
    extra = extra or (0,) * len(size)

    def results(backend: Any, ready: Any) -> Any:
        a, w, g, b, c = (ready(t) for t in (x, weight, grad, *biases))
        yield backend.conv(a, w, b, **ways)
        yield backend.conv_weight_backward(a, g, size=size, **ways)
        yield backend.conv_transpose(g, w, c, output_padding=extra, **ways)

    def ready(t: Any) -> Any:
        return k.astype(k.from_numpy(t), wanted)

    def rounded(t: Any) -> Any:
        return k.to_numpy(ready(t)).astype(np.float64)

    for got, expected in zip(results(k, ready), results(NUMPY, rounded), strict=True):
        assert (got.shape, k.dtype(got)) == (expected.shape, wanted)
        scale = max(1.0, float(abs(expected).max()))
        np.testing.assert_allclose(
            k.to_numpy(got).astype(np.float64), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale
        )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_convolution_of_each_dtype(k: Any, made: list[int], dtype: str) -> None:
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(3, 4, 7, 8)), random.normal(size=(5, 4, 3, 2))
    compare(k, dtype, x, weight, stride=(1, 1), padding=((1, 1), (0, 1)), dilation=(1, 1))
    assert made == [3, 3, 3]


@pytest.mark.parametrize(
    ("places", "size", "stride", "padding", "dilation", "groups"),
    [
        ((11,), (3,), (2,), ((1, 0),), (2,), 1),
        ((9,), (5,), (1,), ((2, 2),), (1,), 4),
        ((8, 6), (3, 3), (2, 1), ((1, 1), (2, 0)), (1, 2), 2),
        ((5, 6, 4), (2, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (1, 0)), (1, 1, 2), 1),
    ],
)
def test_axes_strides_paddings_dilations_and_groups(
    k: Any, made: list[int], places: Any, size: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> None:
    random = np.random.default_rng(1)
    x, weight = random.normal(size=(2, 4, *places)), random.normal(size=(4, 4 // groups, *size))
    compare(k, "float32", x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
    assert made == [2, 2, 2]


def test_many_examples_are_divided_into_batches(k: Any, made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import conv_columns

    monkeypatch.setattr(conv_columns, "LIMIT", 2 * 2 * 9 * 16 * 4)
    random = np.random.default_rng(2)
    x, weight = random.normal(size=(5, 2, 4, 4)), random.normal(size=(3, 2, 3, 3))
    for dtype in ("float32", "bfloat16"):
        made.clear()
        compare(k, dtype, x, weight, stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1))
        assert made == ([2, 2, 1, 2, 2, 1, 2, 2, 1] if dtype == "float32" else [4, 1, 4, 1, 2, 2, 1])


def test_output_padding_of_a_transposed_convolution(k: Any, made: list[int]) -> None:
    random = np.random.default_rng(4)
    x, weight = random.normal(size=(2, 3, 8, 8)), random.normal(size=(4, 3, 3, 3))
    compare(k, "float32", x, weight, stride=(3, 2), padding=((1, 1), (0, 0)), dilation=(1, 1), extra=(2, 1))


def test_windows_of_one_element_are_copied_in_16_bits_only(k: Any, made: list[int]) -> None:
    random = np.random.default_rng(5)
    x, weight = random.normal(size=(2, 3, 4, 4)), random.normal(size=(4, 3, 1, 1))
    compare(k, "float32", x, weight, stride=(2, 1), padding=((0, 0), (0, 0)), dilation=(1, 1))
    assert made == []
    compare(k, "bfloat16", x, weight, stride=(2, 1), padding=((0, 0), (0, 0)), dilation=(1, 1))
    assert made == [2, 2, 2]
