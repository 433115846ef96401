"""Samples: for each operation, a float64 reference and the calls to try, as data.

All checks of an operation use them: values, dtypes, shapes, gradients of every order, non-contiguous inputs, mutation.
They are written once, with NumPy arrays in float64, and cast to the dtype under test::

    samples("hypot", np.hypot, case(real(2, 3), real(3)), case(real(4), 2.0), case(real(0), real(0)))
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import QuantizedDType, as_dtype
from backburn.ops.bodies.float8 import magnitudes
from backburn.ops.table import OPERATIONS

#: An array of NumPy, of any dtype: operands and results of references.
Array = NDArray[Any]
INF, NAN = math.inf, math.nan


@dataclass(frozen=True, eq=False)
class Stored:
    """A quantized operand: ``values``, which ``scheme`` holds exactly, and which are passed to the reference."""

    values: Array
    scheme: QuantizedDType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.values.shape

    def on(self, k: Any) -> Any:
        """The quantized primitive on a backend."""
        return k.quantize(k.from_numpy(self.values.astype(np.float32)), self.scheme)


@dataclass(frozen=True, eq=False)
class Sample:
    """One call of an operation.

    ``operands`` are arrays (float64 ones are cast to the dtype under test), :class:`Stored` ones, Python scalars, None,
    or lists of arrays; ``attributes`` are the options in their canonical form. ``smooth`` is the number of derivatives
    at this point, for comparison with central differences. If it is 0, ``gradients`` may have the first derivative by
    convention: one array or None per operand, for a cotangent of ones. ``relative`` is for small results that keep all
    their digits, which are compared without the absolute tolerance, and ``exact`` for results without any error.
    """

    operands: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    smooth: int = 3
    gradients: tuple[Any, ...] | None = None
    note: str = ""
    relative: bool = False
    exact: bool = False


@dataclass(frozen=True)
class SampleSet:
    """All samples of one operation, its ``reference`` on float64 arrays, and its special settings.

    ``tolerance`` scales the common tolerance of values, ``gradient_tolerance`` that of gradients, with a reason in
    ``because``. ``dtypes`` limits the float dtypes, for an operation that does not exist in all of them.
    """

    name: str
    reference: Callable[..., Any]
    cases: tuple[Sample, ...]
    tolerance: float = 1.0
    gradient_tolerance: float = 1.0
    because: str = ""
    dtypes: tuple[str, ...] = ("float64", "float32", "float16")


class _Samples(Mapping[str, SampleSet]):
    """The samples of each operation that has some, by name."""

    def __getitem__(self, name: str) -> SampleSet:
        if name not in OPERATIONS or OPERATIONS[name].samples is None:
            raise KeyError(name)
        return OPERATIONS[name].samples

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in OPERATIONS.items() if entry.samples is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: The samples of each operation, by its name.
SAMPLES = _Samples()


def samples(name: str, reference: Callable[..., Any], *cases: Sample, **particulars: Any) -> None:
    """Give the operation ``name`` its reference and samples. Raises for an unknown operation or a second set."""
    if name not in OPERATIONS or name in SAMPLES:
        raise ValueError(f"{name} is not an operation, or has samples already")
    OPERATIONS[name].samples = SampleSet(name, reference, cases, **particulars)


def case(
    *operands: Any,
    smooth: int = 3,
    gradients: tuple[Any, ...] | None = None,
    note: str = "",
    relative: bool = False,
    exact: bool = False,
    **attributes: Any,
) -> Sample:
    """A :class:`Sample`: the operands in order, the operation's attributes by name."""
    return Sample(operands, attributes, smooth, gradients, note, relative, exact)


def _random(tag: str, shape: tuple[int, ...]) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{tag}{shape}".encode()))


def real(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    """Distinct float64 values between ``low`` and ``high``, none closer to 0 than 0.1.

    They are spread evenly and shuffled, so that no two are as close as the step of a central difference.
    """
    size = int(np.prod(shape))
    values = np.linspace(low, high, 2 * size + 1)[1::2] if size else np.zeros(0)
    generator = _random(f"real{low}{high}{seed}", shape)
    values = values + generator.uniform(-0.2, 0.2, size) * (high - low) / max(2 * size, 1)
    if low < 0 < high:
        values = np.where(np.abs(values) < 0.1, np.where(values < 0, values - 0.1, values + 0.1), values)
    return generator.permutation(values).reshape(shape)


def positive(*shape: int, seed: int = 0) -> Array:
    """Float64 values between 0.3 and 3."""
    return real(*shape, low=0.3, high=3.0, seed=seed)


def unit(*shape: int, seed: int = 0) -> Array:
    """Float64 values between -0.9 and 0.9."""
    return real(*shape, low=-0.9, high=0.9, seed=seed)


def integers(*shape: int, low: int = -5, high: int = 6, seed: int = 0) -> Array:
    """Int64 values from ``low`` up to but excluding ``high``."""
    return _random(f"int{low}{high}{seed}", shape).integers(low, high, shape)


def ints(*rows: Any) -> Array:
    """Int64 values, as written."""
    return np.array(rows, np.int64)


def booleans(*shape: int, seed: int = 0) -> Array:
    """Booleans, both true and false if there are several."""
    return _random(f"bool{seed}", shape).permutation(np.arange(int(np.prod(shape))) % 2 == 0).reshape(shape)


def stored(name: str, *shape: int, seed: int = 0) -> Stored:
    """Random values that the scheme with this name holds exactly, all with a step of 1/64.

    Values that share a step reach both ends of its range, so that every correct backend finds this step.
    """
    scheme = as_dtype(name)
    assert isinstance(scheme, QuantizedDType)
    generator, values = _random(f"{name}{seed}", shape), np.zeros(shape)
    for group in _groups(values, scheme):
        group[...] = _multiples(generator, group.size, scheme).reshape(group.shape)
    return Stored(values / 64, scheme)


def _groups(values: Array, scheme: QuantizedDType) -> list[Array]:
    """Views of the values that share a step."""
    if scheme.axis is not None:
        return [values[(*[slice(None)] * scheme.axis, slice(i, i + 1))] for i in range(values.shape[scheme.axis])]
    if not scheme.block_shape:
        return [values]
    lengths = (1,) * (values.ndim - len(scheme.block_shape)) + scheme.block_shape
    starts = product(*(range(0, n, size) for n, size in zip(values.shape, lengths, strict=True)))
    return [values[tuple(slice(a, a + size) for a, size in zip(at, lengths, strict=True))] for at in starts]


def _multiples(generator: np.random.Generator, size: int, scheme: QuantizedDType) -> Array:
    """Stored values minus a zero point, including the ends of a range."""
    least, most = scheme.limits
    if scheme.is_float:
        numbers = np.array(magnitudes(scheme.storage.name))
        found = generator.choice(numbers, size) * generator.choice([-1.0, 1.0], size)
        found[:1] = most
        return np.asarray(found)
    if not scheme.has_zero:
        found = generator.integers(least, most + 1, size)
        found[:1] = most
        return found
    low = -int(generator.integers(0, most - least + 1)) if size > 1 else 0
    found = generator.integers(low, low + most - least + 1, size)
    found[:2] = (low + most - least, low)[:size]
    return found
