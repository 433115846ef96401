"""Integers that float32 would round, alone and with floats: computed in integers or float64, compared exactly."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError

TIMES = np.array([1600000007, 1600000001, 1600000002, 1600000000, 1600000007, 1600000003])
OTHERS = np.array([1600000002, 1600000001, 1600000005, 1600000000, 1600000001, 1600000004])
SQUARE = np.array([[1600000007, 1600000001, 1600000002], [1600000000, 1600000007, 3], [16000009, 13, 1600000023]])

x, y = bb.asarray(TIMES), bb.asarray(OTHERS)
floats = y.astype("float32")
functional = bb.nn.functional

#: Functions of integers, compared with the same on float64.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "var": bb.var, "std": bb.std, "nanvar": bb.nanvar, "nanstd": bb.nanstd, "sin": bb.sin, "cos": bb.cos,
    "tan": bb.tan, "softmax": bb.softmax, "log_softmax": bb.log_softmax, "gradient": bb.gradient,
    "layer_norm": functional.layer_norm, "median": bb.median, "quantile": lambda t: bb.quantile(t, 0.3),
    "softmin": functional.softmin, "corrcoef": lambda t: bb.corrcoef(bb.stack([t, t * t])), "cov": bb.cov,
    "logcumsumexp": lambda t: bb.logcumsumexp(t, 0), "softshrink": lambda t: functional.softshrink(t, 1600000003.0),
}  # fmt: skip
PAIRS: dict[str, Callable[..., Any]] = {
    "mse_loss": functional.mse_loss, "l1_loss": functional.l1_loss, "huber_loss": functional.huber_loss,
    "smooth_l1_loss": functional.smooth_l1_loss, "trapezoid": bb.trapezoid, "isclose": bb.isclose, "isin": bb.isin,
    "subtract": bb.subtract, "remainder": bb.remainder, "fmod": bb.fmod, "floor_divide": bb.floor_divide,
    "equal": bb.equal, "less": bb.less, "greater_equal": bb.greater_equal, "not_equal": bb.not_equal,
    "lerp": lambda a, b: bb.lerp(a, b, 0.25), "interp": lambda a, b: bb.interp(a, bb.sort(b)[1:], b[1:]),
    "searchsorted": lambda a, b: bb.searchsorted(bb.sort(b), a),
    "gradient": lambda a, b: bb.gradient(a, bb.sort(b) * 2),
    "cdist": lambda a, b: bb.linalg.cdist(a[:, None], b[:, None]),
}  # fmt: skip


def check(found: Any, wide: Any) -> None:
    """Assert that ``found`` has the values of ``wide`` in a default dtype."""
    if not isinstance(found, bb.Tensor):
        found, wide = found[0], wide[0]
    assert found.dtype in ("float32", "bool", "int64")
    expected = wide.numpy().astype(found.numpy().dtype)
    np.testing.assert_allclose(found.numpy(), expected, rtol=3e-7, atol=0.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_integers(name: str) -> None:
    check(FUNCTIONS[name](x), FUNCTIONS[name](x.astype("float64")))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("operands", [(x, y), (x, floats), (floats, x)], ids=["ints", "second", "first"])
def test_functions_of_integers_and_floats(name: str, operands: tuple[Any, Any]) -> None:
    if name in ("gradient", "interp", "searchsorted") and operands[0] is floats:
        pytest.skip("the integers would be coordinates")
    found = PAIRS[name](*operands)
    wide = PAIRS[name](*(t.astype("float64") for t in operands))
    if isinstance(found, bb.IntTensor):  # integers alone are exact wherever float64 is
        assert found.tolist() == wide.tolist()
        return
    check(found, wide)


@pytest.mark.parametrize("name", ["det", "slogdet", "inv", "pinv", "eigvalsh", "svdvals", "matrix_rank", "cholesky"])
def test_matrices_of_integers(name: str) -> None:
    matrix = SQUARE @ SQUARE.T // 10**9 if name == "cholesky" else SQUARE
    function = getattr(bb.linalg, name)
    found, wide = function(bb.asarray(matrix)), function(bb.asarray(matrix.astype("float64")))
    check(found[1] if name == "slogdet" else found, wide[1] if name == "slogdet" else wide)


def test_isclose_and_histogram_of_large_integers() -> None:
    close = bb.isclose(bb.asarray([140499600015872]), bb.asarray([140499600015360]), rtol=0.0, atol=0.0)
    assert close.tolist() == [False]
    times = bb.asarray([1600000000, 1600000001, 1600000002, 1600000007])
    counts = bb.histogram(times, bins=7).counts
    assert counts.tolist() == np.histogram(times.numpy(), 7)[0].tolist()
    edges = bb.asarray([1600000000, 1600000002, 1600000009])
    assert bb.histogram(times, bins=edges).counts.tolist() == [2, 2]


def test_gradients_of_mixed_operands_have_the_dtype_of_the_float() -> None:
    leaf = bb.asarray([1.0, 2.0]).require_grad()
    loss = functional.mse_loss(leaf, bb.asarray([1600000001, 3]))
    gradient = leaf.grad(loss.backward())
    assert gradient is not None
    assert loss.dtype == gradient.dtype == "float32"
    assert gradient.tolist() == [-1.6e9, -1.0]


NUMBERS = (
    2.0**53, 2.0**53 + 2, 5.0, 4.5, -7.5, -7.0, float("inf"), -float("inf"), float("nan"), 1e300, 2**63, 2.0**63,
    -(2.0**63), 2**64, -(2**70), 6, 0.0, np.float64(4.5), np.float32(5.0),
)  # fmt: skip
BOUNDS = {
    "int64": [2**53 + 1, 2**53, 5, -7, 2**62, -(2**63)], "uint8": [0, 5, 255], "int8": [-128, 5, 127, -7],
    "uint64": [0, 5, 2**53 + 1, 2**64 - 1],
}  # fmt: skip


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons_with_numbers_are_exact(dtype: str, compare: Callable[[Any, Any], Any]) -> None:
    values = np.array(BOUNDS[dtype], dtype)
    for number in NUMBERS:
        plain = float(number) if isinstance(number, np.floating) else number
        expected = [bool(compare(int(v), plain)) for v in values]
        assert compare(bb.asarray(values), number).tolist() == expected, number
        assert bb.vmap(lambda v, n=number: compare(v, n))(bb.asarray(values)).tolist() == expected, number
        if not isinstance(number, np.generic):
            reflected = [bool(compare(plain, int(v))) for v in values]
            assert compare(number, bb.asarray(values)).tolist() == reflected, number


@pytest.mark.parametrize("number", [0.5, 3.0, 3.5, 2.5, 7, 8, 2**70, -(2**70), float("inf"), -float("inf")])
def test_isin_and_searchsorted_of_python_numbers(number: float) -> None:
    values = [1, 3, 3, 7]
    for side in ("left", "right"):
        expected = np.searchsorted(np.array(values, float), float(number), side=side)
        assert bb.searchsorted(bb.asarray(values), number, side=side).item() == expected
    assert bb.isin(bb.asarray(values), number).tolist() == [v == number for v in values]
    assert bb.isin(number, bb.asarray(values)).item() == (number in values)
    assert bb.isin(bb.asarray(values), number, invert=True).tolist() == [v != number for v in values]


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_isin_and_searchsorted_of_numbers_beyond_float64(number: int) -> None:
    values = bb.asarray([1, 3])
    assert not bb.any(bb.isin(values, number)).item()
    assert bb.searchsorted(values, number).item() == (2 if number > 0 else 0)


def test_numbers_beyond_the_dtype() -> None:
    """Bounds beyond every element have no effect; other numbers outside the dtype's range are errors."""
    small, values = bb.asarray(np.array([1, 2, 250], "uint8")), bb.asarray([1, 2, 3])
    assert bb.clip(small, -5, 300).tolist() == [1, 2, 250]
    assert bb.clip(values, -(2**70), 2**70).tolist() == [1, 2, 3]
    assert bb.clip(values, -(2**70), 2).tolist() == [1, 2, 2]
    assert (bb.minimum(small, 300).tolist(), bb.maximum(-1, small).tolist()) == ([1, 2, 250], [1, 2, 250])
    for call in (
        lambda: values + 2**70,
        lambda: 2**70 - values,
        lambda: small + 300,
        lambda: bb.clip(small, 300, 400),
        lambda: bb.maximum(values, 2**70),
        lambda: bb.where(values > 1, values, 2**70),
        lambda: values.at[0].set(2**70),
        lambda: bb.full((2,), 300, dtype="uint8"),
    ):
        with pytest.raises(ArgumentError, match="an integer is beyond what the dtype holds"):
            call()
