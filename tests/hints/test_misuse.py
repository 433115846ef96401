"""Bad input to every public function gives an error of ours that begins with its name, and no warning."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.helpers.valid_calls import F, I, Q, bind, functions, valid_call

import backburn as bb
from backburn.base import threads
from backburn.base.errors import BackburnError

#: Values tried for each argument; those that are valid raise nothing.
BAD: dict[str, Any] = {
    "None": None,
    "text": "x",
    "object": object(),
    "fraction": 2.5,
    "NaN": float("nan"),
    "negative": -100,
    "complex": 1j,
    "truth": True,
    "empty tuple": (),
    "mixed list": [1, "a"],
    "dict": {},
    "array": np.ones(2),
    "scalar type": np.float32,
    "bool tensor": bb.asarray([True, False]),
    "int tensor": bb.asarray([5]),
    "other dtype": bb.ones((7,), dtype="float64"),
    "quantized tensor": Q,
    "other backend": bb.asarray([[1.0, 2.0]], backend="null"),
    "other shape": bb.ones((5, 2, 3)),
}

FUNCTIONS = dict(functions())


@pytest.fixture(autouse=True)
def as_many_threads_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_followers", [])
    monkeypatch.setattr(threads, "_num_threads", None)


#: Errors of these quote the spec, and need no function name.
NAMELESS = {"load_backend"}


def cases(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls of a function with one bad argument, each with a description.

    Flags take any value with a truth value. An array of two elements has none, which is NumPy's own error, so it is
    left out.
    """
    function = FUNCTIONS[name]
    call = valid_call(name, function)
    for parameter in inspect.signature(function).parameters.values():
        for word, value in BAD.items():
            if not (isinstance(parameter.default, bool) and word == "array"):
                yield f"{parameter.name}={word}", {**call, parameter.name: value}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_valid_call_succeeds(name: str) -> None:
    """The calls into which the tests below put bad arguments are valid."""
    bind(FUNCTIONS[name], valid_call(name, FUNCTIONS[name]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_argument_gets_our_error(name: str) -> None:
    """Whatever a function refuses, the error is ours and begins with the name that the user called."""
    short = name.rpartition(".")[2]
    problems = []
    for word, call in cases(name):
        try:
            bind(FUNCTIONS[name], call)  # a warning is an error in tests
        except BackburnError as error:
            if not str(error).startswith(f"{short}: ") and name not in NAMELESS:
                problems.append(f"{word}: {error}")
        except Exception as error:
            problems.append(f"{word}: {type(error).__name__}: {error}")
    assert problems == []


#: Operators, which have no parameter names.
OPERATORS = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "pow": lambda x, y: x**y,
    "matmul": lambda x, y: x @ y,
    "less": lambda x, y: x < y,
    "greater_equal": lambda x, y: x >= y,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_left_shift": lambda x, y: x << y,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("x", [F, I], ids=["float", "int"])
def test_bad_operand_of_an_operator_gets_our_error(name: str, x: Any) -> None:
    """The error names the function that implements the operator, whichever operand is bad."""
    problems = []
    for value in BAD.values():
        mirrored = () if name in ("less", "greater_equal") else ((value, x),)  # Python calls the opposite of x
        for operands in ((x, value), *mirrored):
            try:
                OPERATORS[name](*operands)
            except BackburnError as error:
                if not str(error).startswith(f"{name}: "):
                    problems.append(str(error))
    assert problems == []


@pytest.mark.parametrize("name", ["backend", "dtype", "primitive", "shape", "device", "T", "data", "requires_grad"])
def test_attributes_of_tensors_are_neither_set_nor_deleted(name: str) -> None:
    x: Any = bb.ones((2, 2))
    before = x.dtype, x.backend
    with pytest.raises(AttributeError):
        setattr(x, name, bb.int64)
    with pytest.raises(AttributeError):
        delattr(x, name)
    assert (x.dtype, x.backend) == before


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 2, 3)])
def test_tensors_without_a_transpose_lack_the_attribute(shape: tuple[int, ...]) -> None:
    """Tools such as ``inspect.getmembers`` read all attributes."""
    for x in (bb.ones(shape), bb.ones(shape, dtype=bb.int64), bb.ones(shape) > 0.0, bb.ones((4,)).quantize()):
        found = dict(inspect.getmembers(x))
        assert ("T" in found, "mT" in found) == (x.ndim == 2, x.ndim >= 2)
    if len(shape) < 2:
        with pytest.raises(bb.errors.ShapeError, match=r"Operand: float32"):
            _ = bb.ones(shape).T


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("cov", "correction"), ("index_add", "values"), ("linalg.pinv", "rtol"), ("nn.functional.celu", "alpha"),
        ("nn.functional.huber_loss", "delta"), ("quantile", "q"), ("random.normal", "mean"), ("vector_norm", "ord"),
    ],
)  # fmt: skip
def test_integers_beyond_the_range_of_floats(name: str, option: str) -> None:
    with pytest.raises(BackburnError, match=rf"^{name.rpartition('.')[2]}: "):
        bind(FUNCTIONS[name], {**valid_call(name, FUNCTIONS[name]), option: 10**400})


def test_none_is_not_a_dtype() -> None:
    """NumPy reads None as float64; here it is not a dtype, and means the default only where a signature says so."""
    x = bb.ones(2)
    for call in (
        lambda: x.astype(None),
        lambda: bb.use_dtype(None).__enter__(),
        lambda: bb.nn.Linear(2, 1).astype(None),  # type: ignore[arg-type]
        lambda: bb.result_type(x, None),  # type: ignore[arg-type]
        lambda: bb.finfo(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(bb.errors.DTypeError, match="None is not a dtype of backburn"):
            call()
    assert bb.zeros(2, dtype=None).dtype == bb.default_dtype() == bb.float32
