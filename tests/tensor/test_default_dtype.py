"""The dtype of new float tensors: from ``use_dtype``, else from the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.dtypes import float16, float64
from backburn.tape import GradGraph, GradientTape
from backburn_numpy import NumpyBackend


class Wide(NumpyBackend):
    """A backend whose floats are float64."""

    spec = property(lambda self: "wide")
    float_dtype = property(lambda self: float64)


LEVELS = [Wide(), bb.Autodiff(Wide()), bb.Forward(bb.Autodiff(Wide()))]
NEW: dict[str, Callable[[Any], Any]] = {
    "asarray": lambda k: bb.asarray([1.0, 2], backend=k),
    "asarray of nothing": lambda k: bb.asarray([], backend=k),
    "asarray beside integers": lambda k: bb.asarray([np.int8(1), 2.5], backend=k),
    "zeros": lambda k: bb.zeros(2, backend=k),
    "full": lambda k: bb.full(2, 0.5, backend=k),
    "arange": lambda k: bb.arange(0.5, 3.0, backend=k),
    "linspace": lambda k: bb.linspace(0, 1, 3, backend=k),
    "eye": lambda k: bb.eye(2, backend=k),
    "uniform": lambda k: bb.random.uniform((2,), backend=k),
    "normal": lambda k: bb.random.normal((2,), backend=k),
    "hann_window": lambda k: bb.fourier.hann_window(4, backend=k),
    "fftfreq": lambda k: bb.fft.fftfreq(4, backend=k),
    "where": lambda k: bb.where(bb.asarray([True], backend=k), 0.5, 1.5),
    "int with a float": lambda k: bb.arange(3, backend=k) + 0.5,
    "int by int": lambda k: bb.arange(3, backend=k) / 2,
    "a function of ints": lambda k: bb.exp(bb.arange(3, backend=k)),
    "mean of ints": lambda k: bb.arange(3, backend=k).mean(),
    "mean of bools": lambda k: (bb.arange(3, backend=k) > 1).mean(),
    "dequantize": lambda k: bb.ones((2, 2), backend=k).quantize().dequantize(),
    "quantized plus a number": lambda k: bb.ones((2, 2), backend=k).quantize() + 1.0,
    "astype(float)": lambda k: bb.arange(3, backend=k).astype(float),
    "sum in float": lambda k: bb.arange(3, backend=k).sum(dtype=float),
    "zeros of float": lambda k: bb.zeros(2, dtype=float, backend=k),
    "asarray of float": lambda k: bb.asarray([1, 2], dtype=float, backend=k),
    "zeros_like of float": lambda k: bb.zeros_like(bb.arange(2, backend=k), dtype=float),
    "product of quantized in float": lambda k: bb.quantized_matmul(
        bb.ones((4, 4), backend=k).quantize(), bb.ones((4, 4), backend=k).quantize(), dtype=float
    ),
    "one_hot of float": lambda k: bb.one_hot(bb.arange(2, backend=k), 2, dtype=float),
}


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("k", LEVELS, ids=lambda k: k.spec)
def test_new_floats_have_the_dtype_of_their_backend_or_the_one_in_use(k: Any, name: str) -> None:
    assert NEW[name](k).dtype is float64
    assert NEW[name](bb.Autodiff(NumpyBackend())).dtype is bb.float32
    with bb.use_dtype("float16"):
        assert NEW[name](k).dtype is float16


def test_the_default_backend_says_what_the_default_dtype_is() -> None:
    with bb.use_backend(bb.Autodiff(Wide())):
        assert bb.default_dtype() is float64
        assert bb.result_type(bb.int8, 0.5) is float64
        assert bb.nn.Linear(2, 3).weight.dtype is float64
        assert bb.nn.Linear(2, 3).astype("float32").astype(float).weight.dtype is float64
        with bb.use_dtype("float16"):
            assert bb.default_dtype() is bb.result_type(bb.int8, 0.5) is float16
    info = bb.__array_namespace_info__()
    assert info.default_dtypes(device=Wide())["real floating"] is float64


def test_numbers_on_a_tape_have_the_dtype_of_its_backend() -> None:
    tape, graph = GradientTape(backend=Wide()), GradGraph(backend=Wide())
    assert tape.value(tape.input([1.0, 2.0])).dtype is float64
    assert tape.backward([1.0], output=tape.alloc(1))[-1].dtype is float64
    assert graph.tensor(graph.parameter(0.5)).dtype is float64
