"""Recorded functions: CUDA kernels compute their passes, and NumPy everything else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tests.backends.cupy.emulation.emulated import EmulatedRunner, of_pass
from tests.backends.cupy.emulation.operands import TOLERANCE
from tests.backends.cupy.stand_in import compiled

import backburn as bb
from backburn.base.trees import flatten
from backburn.decorators.capture.recorder import Capture
from backburn.programs.executable import CompiledProgram
from backburn.programs.ir import Program
from backburn_cupy.kernels.sources import source
from backburn_cupy.programs import compile_program
from backburn_numpy import NumpyBackend


class OverCuda(NumpyBackend):
    """NumPy, with passes computed by a runner's kernels."""

    runner: Any = None

    def compile(self, program: Program) -> CompiledProgram:
        """Compile as the CuPy backend does."""
        return compile_program(self, program)

    @contextlib.contextmanager
    def translate_errors(self, name: str) -> Iterator[None]:
        """Do not translate errors."""
        yield


class Faulty(EmulatedRunner):
    """A runner that replaces ``right`` by ``wrong`` in the kernels of passes."""

    def __init__(self, libraries: dict[str, Any], right: str, wrong: str, order: int = 0) -> None:
        super().__init__(libraries, order)
        self._change, self.is_changed = (right, wrong), False

    def pass_library(self, family: str, kernel: str) -> Any:
        text = source(family)
        self.is_changed |= self._change[0] in text
        return of_pass(kernel, text.replace(*self._change), compiled.folder())


class Noting:
    """A runner that records the kernels of passes and runs none."""

    def __init__(self) -> None:
        self.xp, self.recorded = np, None
        self.kernels: dict[str, None] = {}

    def run(self, family: str, kernel: str, *_: Any) -> None:
        if family.startswith("pass_"):
            self.kernels[kernel] = None


def passed(on: Any, function: Callable[..., Any], *arrays: Any) -> tuple[list[Any], Any]:
    """The results of a replay, and the captured function."""
    OverCuda.runner = on
    captured = bb.capture(function, state=False, on_fallback="error")
    given = [bb.asarray(x, backend=Capture(OverCuda())) for x in arrays]
    found = [captured(*given) for _ in range(3)][-1]
    assert captured.reason == ""
    return [x.numpy() for x in flatten(found)[0]], captured


def plain(function: Callable[..., Any], *arrays: Any) -> list[Any]:
    """The results of the function in float64."""
    return [x.numpy() for x in flatten(function(*(bb.asarray(x.astype(np.float64)) for x in arrays)))[0]]


def gradients(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The value of a function, and the gradients of its first ``count`` arguments."""
    return bb.value_and_grad(function, argnums=tuple(range(count)))


def close(found: list[Any], expected: list[Any], dtype: str, scale: float = 4.0) -> None:
    """Fail unless results agree up to rounding, relative to each result's largest element."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == dtype
        finite = np.isfinite(other)
        np.testing.assert_array_equal(one[~finite], other[~finite])
        largest = np.abs(other[finite]).max(initial=1e-30)
        np.testing.assert_allclose(one[finite], other[finite], rtol=0, atol=scale * TOLERANCE[dtype] * largest)


# ---- functions whose calls become passes ----


def layer_norm(x: Any, scale: Any, bias: Any, weight: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = bb.square(centred).mean(axis=-1, keepdims=True)
    return ((centred * bb.rsqrt(variance + 1e-5) * scale + bias) * weight).mean()


def softmax(x: Any, scale: Any, bias: Any, weight: Any) -> Any:
    scores = x * scale + bias
    shares = bb.exp(scores - scores.max(axis=-1, keepdims=True))
    return (shares / shares.sum(axis=-1, keepdims=True) * weight).sum()


def gelu(x: Any, scale: Any, bias: Any, weight: Any) -> Any:
    y = bb.gelu(x * scale + bias, approximate="tanh")
    return (y * bb.sigmoid(y) * weight).mean()


def range_of_rows(x: Any, scale: Any, bias: Any, weight: Any) -> Any:
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    return (bb.where(x > 0.0, x - low, bias * x) / (high - low) * scale + bb.abs(weight)).sum(axis=0)


def log_shares(x: Any, scale: Any, bias: Any, weight: Any) -> Any:
    below = x * weight - (x * weight).max(axis=-1, keepdims=True)
    return below - bb.log(bb.exp(below).sum(axis=-1, keepdims=True))


def modulated(x: Any, *factors: Any) -> Any:
    """An array with others that broadcast to it along several axes; some of its rows are several axes."""
    y = x
    for factor in factors:
        y = bb.tanh(y * factor + factor)
    centred = y - y.mean(axis=tuple(range(2, x.ndim)), keepdims=True)
    return centred, y.sum(axis=(0, *range(2, x.ndim))), bb.where(factors[0] > 0.0, y, x * 0.5)


#: Shapes of arrays, and of others that broadcast to these: of blocks of rows, and of all blocks.
BLOCKS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((3, 70, 64), (3, 1, 64), (70, 64), (70, 1), (3, 1, 1)),
    ((4, 3, 40, 33), (3, 1, 1), (4, 1, 40, 33), (4, 1, 1, 33), (3, 40, 1)),
    ((30, 20, 7, 9), (20, 1, 1), (30, 20, 1, 1), (30, 1, 1, 1), (7, 9)),
    ((5, 130, 1024), (130, 1024), (5, 1, 1024), (5, 1, 1)),
)

CASES: dict[str, tuple[Callable[..., Any], bool]] = {
    "layer norm": (layer_norm, True),
    "softmax": (softmax, True),
    "gelu": (gelu, True),
    "range": (range_of_rows, False),
    "log shares": (log_shares, False),
}


def operands(shape: Sequence[int], dtype: Any, seed: int = 0) -> list[Any]:
    """Arrays for the functions above."""
    rng = np.random.default_rng(seed)
    width = shape[-1:]
    x, scale, bias, weight = (rng.normal(size=s).astype(dtype) for s in (shape, width, width, shape))
    return [x, scale + 1.5, bias, 0.3 * weight + 1.0]
