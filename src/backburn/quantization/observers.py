"""Observers: statistics of observed values, and the range that a scheme should represent.

An observer takes tensors, one after another, and returns the ends of a range for :func:`backburn.quantize`. With an
``axis``, each index along it has its own range. The state of an observer is in its attributes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from backburn.base.dtypes import QuantizedDType
from backburn.base.errors import ArgumentError, NumericalInstabilityError, ShapeError
from backburn.ops.bodies.quantized import block_shape, scale_shape
from backburn.tensor import shape
from backburn.tensor.classes import Tensor
from backburn.tensor.core.defaults import use_backend
from backburn.tensor.core.dispatch import float_operand
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axis_of, bounded, integer
from backburn.tensor.creation import arange
from backburn.tensor.selection import where
from backburn.tensor.sort import quantile

Range = tuple[Tensor, Tensor]


@dataclass(kw_only=True, eq=False)
class Observer:
    """The base class of observers, which override ``_see`` and ``_range``.

    ``axis`` is the axis along which each index has its own range, by default none. ``count`` is the number of
    values seen so far for each range.
    """

    axis: int | None = None
    count: int = field(default=0, init=False)

    def observe(self, x: Tensor) -> None:
        """Take the values of a float tensor into account; one without elements changes nothing.

        Raises :class:`NumericalInstabilityError` for NaN and infinite values.
        """
        name = f"{type(self).__name__}.observe"
        y = float_operand(name, x).detach()
        if not y.size:
            return
        if not bool(y.isfinite().all().item()):
            raise NumericalInstabilityError(f"{name}: values must be finite to have a range: {describe((x,))}")
        rows = y.reshape(1, -1)
        if self.axis is not None:
            axis = axis_of(name, y, self.axis)
            rows = shape.permute_dims(y, (axis, *(a for a in range(y.ndim) if a != axis))).reshape(y.shape[axis], -1)
        self._see(rows)
        self.count += rows.shape[1]

    def range(self, scheme: QuantizedDType) -> Range:
        """The ends of the range for ``scheme``: 0-d tensors, or vectors with an entry for each index along ``axis``.

        Raises :class:`ArgumentError` if nothing was observed.
        """
        if not self.count:
            raise ArgumentError(
                f"{type(self).__name__}.range: nothing was observed, so there is no range: no data reached the layer. "
                "Leave it out with skip"
            )
        low, high = self._range(scheme)
        return (low, high) if self.axis is not None else (low.reshape(()), high.reshape(()))

    def weight_range(self, x: Tensor, scheme: QuantizedDType) -> Range:
        """The range of each step of a tensor under ``scheme``, found by a new observer with the same options.

        >>> import backburn as bb
        >>> low, high = MinMax().weight_range(bb.asarray([[1.0, 2.0, -3.0]]), bb.QuantizedDType("int8", block=2,
        ...     granularity="block"))
        >>> low.tolist(), high.tolist()
        ([[1.0, -3.0]], [[2.0, -3.0]])
        """
        y = float_operand("weight_range", x).detach()
        if not scheme.block_shape:
            return self._of(y, scheme.axis, scheme)
        try:
            steps = scale_shape(y.shape, scheme)
        except ShapeError as error:
            raise ShapeError(f"{type(self).__name__}.weight_range: {error}") from None
        for axis, size in enumerate(block_shape(scheme, y.ndim)):
            whole = y.shape[axis] // size * size
            if 0 < whole < y.shape[axis]:  # the last block is shorter, and is observed separately
                parts = shape.split(y, [whole, y.shape[axis] - whole], axis=axis)
                lows, highs = zip(*(self.weight_range(part, scheme) for part in parts), strict=True)
                return shape.concat(lows, axis=axis), shape.concat(highs, axis=axis)
        # Whole blocks only: first the axes of block numbers, then the axes within a block.
        apart = [n for length, count in zip(y.shape, steps, strict=True) for n in (count, length // max(1, count))]
        blocks = shape.permute_dims(y.reshape(apart), (*range(0, 2 * y.ndim, 2), *range(1, 2 * y.ndim, 2)))
        low, high = self._of(blocks.reshape(math.prod(steps), math.prod(apart[1::2])), 0, scheme)
        return low.reshape(steps), high.reshape(steps)

    def _of(self, x: Tensor, axis: int | None, scheme: QuantizedDType) -> Range:
        fresh = replace(self, axis=axis)
        fresh.observe(x)
        return fresh.range(scheme)

    def _see(self, rows: Tensor) -> None:
        """Include a matrix whose rows have separate ranges."""
        raise NotImplementedError

    def _range(self, scheme: QuantizedDType) -> Range:
        """One range for each row."""
        raise NotImplementedError


def _widened(rows: Tensor, low: Tensor | None, high: Tensor | None) -> Range:
    """The range of each row, widened to contain ``low`` and ``high`` if they are given."""
    least, largest = rows.min(axis=1), rows.max(axis=1)
    return least if low is None else least.minimum(low), largest if high is None else largest.maximum(high)


@dataclass(kw_only=True, eq=False)
class MinMax(Observer):
    """The least and the largest value seen: ``low = min(x)``, ``high = max(x)``.

    >>> import backburn as bb
    >>> observer = MinMax()
    >>> for x in (bb.asarray([-1.0, 2.0]), bb.asarray([0.5, 5.0])):
    ...     observer.observe(x)
    >>> float(observer.low.item()), float(observer.high.item())
    (-1.0, 5.0)
    """

    low: Tensor | None = field(default=None, init=False)
    high: Tensor | None = field(default=None, init=False)

    def _see(self, rows: Tensor) -> None:
        self.low, self.high = _widened(rows, self.low, self.high)

    def _range(self, scheme: QuantizedDType) -> Range:
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


@dataclass(kw_only=True, eq=False)
class MovingAverage(MinMax):
    """Exponential moving averages of the least and the largest value of each tensor.

    ``low = momentum * low + (1 - momentum) * min(x)``, and ``high`` likewise with the largest; the first tensor sets
    the initial values. A single outlier counts for little. (Jacob et al. (2018), *Quantization and Training of Neural
    Networks for Efficient Integer-Arithmetic-Only Inference*, CVPR, section 3.1.)

        >>> import backburn as bb
        >>> observer = MovingAverage(momentum=0.75)
        >>> for x in (bb.asarray([0.0, 4.0]), bb.asarray([0.0, 8.0])):
        ...     observer.observe(x)
        >>> float(observer.high.item())
        5.0
    """

    momentum: float = field(default=0.9, kw_only=False)

    def __post_init__(self) -> None:
        bounded("MovingAverage", "momentum", self.momentum, least=0, below=1)

    def _see(self, rows: Tensor) -> None:
        low, high = rows.min(axis=1), rows.max(axis=1)
        if self.low is not None and self.high is not None:
            low = self.low * self.momentum + low * (1 - self.momentum)
            high = self.high * self.momentum + high * (1 - self.momentum)
        self.low, self.high = low, high


@dataclass(kw_only=True, eq=False)
class AbsMean(Observer):
    """The mean absolute value to both sides of 0: ``high = mean(abs(x))``, ``low = -high``.

    For models with the weights -1, 0 and 1, which are trained with this range; larger weights are clipped to its ends.
    (Ma et al. (2024), *The Era of 1-bit LLMs: All Large Language Models are in 1.58 Bits*, arXiv:2402.17764,
    section 2.)

        >>> import backburn as bb
        >>> w = bb.asarray([0.25, -2.0, 0.75, -1.0])
        >>> low, high = AbsMean().weight_range(w, bb.QuantizedDType("int2"))
        >>> w.quantize(dtype="qint2_symmetric_tensor_float32", low=low, high=high).tolist()
        [0.0, -1.0, 1.0, -1.0]
    """

    total: Tensor | None = field(default=None, init=False)

    def _see(self, rows: Tensor) -> None:
        new = rows.abs().sum(axis=1)
        self.total = new if self.total is None else self.total + new

    def _range(self, scheme: QuantizedDType) -> Range:
        assert self.total is not None
        high = self.total / self.count
        return -high, high


@dataclass(kw_only=True, eq=False)
class _Sampling(Observer):
    """An observer that keeps at most ``keep`` values of each range, evenly sampled from all values seen."""

    keep: int = 1 << 16
    values: Tensor | None = field(default=None, init=False)

    def _check_keep(self) -> None:
        integer(type(self).__name__, "keep", self.keep, least=2)

    def _see(self, rows: Tensor) -> None:
        new = rows.shape[1]
        share = min(new, max(1, round(self.keep * new / (self.count + new))))
        if self.values is None:
            self.values = spread_out(rows, min(new, self.keep))
        elif self.values.shape[1] + new <= self.keep:
            self.values = shape.concat([self.values, rows], axis=1)
        else:
            old = spread_out(self.values, min(self.values.shape[1], self.keep - share))
            self.values = shape.concat([old, spread_out(rows, share)], axis=1)

    def _kept(self) -> Tensor:
        assert self.values is not None
        return self.values


def spread_out(rows: Tensor, count: int) -> Tensor:
    """``count`` columns of a matrix, spread without favouring any period; always the same columns.

    Column ``i * s mod n`` with the smallest ``s`` from 0.618 n up that is coprime to n.
    """
    length = rows.shape[1]
    if count >= length:
        return rows
    step = max(1, int(0.6180339887 * length))
    while math.gcd(step, length) > 1:
        step += 1
    with use_backend(rows.backend):
        return rows.take((arange(count) * step) % length, axis=1)


@dataclass(kw_only=True, eq=False)
class Percentile(_Sampling):
    """The range without outliers: from the quantile ``1 - percent / 100`` to the quantile ``percent / 100``.

    They are exact for up to ``keep`` values, and those of an evenly spaced sample of ``keep`` values after that. (Wu et
    al. (2020), *Integer Quantization for Deep Learning Inference: Principles and Empirical Evaluation*,
    arXiv:2004.09602, section 5.)

        >>> import backburn as bb
        >>> observer = Percentile(percent=90.0)
        >>> observer.observe(bb.arange(101, dtype=bb.float32))
        >>> [round(float(end.item()), 3) for end in observer.range(bb.qint8)]
        [10.0, 90.0]
    """

    percent: float = field(default=99.99, kw_only=False)

    def __post_init__(self) -> None:
        self._check_keep()
        bounded("Percentile", "percent", self.percent, above=50, most=100)

    def _range(self, scheme: QuantizedDType) -> Range:
        values, part = self._kept(), self.percent / 100
        return quantile(values, 1 - part, axis=1), quantile(values, part, axis=1)


@dataclass(kw_only=True, eq=False)
class MSE(_Sampling):
    """The range with the least mean squared error, among fractions ``f`` of the widest range.

    It is ``f * low`` to ``f * high`` for ``argmin_f mean((x - dequantize(quantize(x, f * low, f * high)))**2)``.
    ``candidates`` fractions are tried, evenly from 1 down to ``least``. Errors are those of the values kept, at most
    ``keep`` for each range; the widest range is that of all values seen. (Nagel et al. (2021), *A White Paper on Neural
    Network Quantization*, arXiv:2106.08295, section 3.1.)

        >>> import backburn as bb
        >>> observer = MSE()
        >>> observer.observe(bb.concat([bb.linspace(-1.0, 1.0, 1000), bb.asarray([4.0])]))
        >>> low, high = observer.range(bb.QuantizedDType("int4"))
        >>> 0.9 < float(high.item()) < 2.0
        True
    """

    candidates: int = 40
    least: float = 0.2
    low: Tensor | None = field(default=None, init=False)
    high: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._check_keep()
        integer("MSE", "candidates", self.candidates, least=1)
        bounded("MSE", "least", self.least, above=0, most=1)

    def _see(self, rows: Tensor) -> None:
        super()._see(rows)
        self.low, self.high = _widened(rows, self.low, self.high)

    def _range(self, scheme: QuantizedDType) -> Range:
        values, rows = self._kept(), scheme.over(0)
        assert self.low is not None
        assert self.high is not None
        best: Tensor | None = None
        fraction: Tensor | None = None
        for i in range(self.candidates):
            f = 1.0 - (1.0 - self.least) * i / max(1, self.candidates - 1)
            rounded = values.quantize(dtype=rows, low=self.low * f, high=self.high * f).dequantize(dtype=values.dtype)
            error = (values - rounded).square().mean(axis=1)
            if best is None or fraction is None:
                best, fraction = error, error * 0.0 + f
            else:
                better = error < best
                best, fraction = where(better, error, best), where(better, f, fraction)
        assert fraction is not None
        return self.low * fraction, self.high * fraction
