"""Random numbers: the CUDA kernels, run on the CPU, are bitwise equal to NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, operand

from backburn.backend.host_numbers import RECORDING_STEP, Recording
from backburn.base.dtypes import DTYPES
from backburn.base.errors import ArgumentError
from backburn_cupy.kernels import random

STREAMS = [(0, 0), (1, 1), (2**64 + 5, 7), (2**128 - 1, 8), (12345678901234567890123, 2**40 + 3), (3, 2**63 + 13)]
SHAPES = [(), (1,), (7,), (8,), (9,), (3, 5), (1000,), (0,), (2, 0)]


@pytest.mark.parametrize(("key", "offset"), STREAMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_random_numbers_equal_numpy_s_bitwise(
    on: EmulatedRunner, dtype: str, key: int, offset: int, shape: tuple[int, ...]
) -> None:
    of_dtype = DTYPES[dtype]
    for actual, expected in (
        (random.uniform(on, key, offset, shape, of_dtype), NUMPY.uniform(key, offset, shape, of_dtype)),
        (random.random_bits(on, key, offset, shape), NUMPY.random_bits(key, offset, shape)),
        (random.bernoulli(on, key, offset, shape, 0.3), NUMPY.bernoulli(key, offset, shape, 0.3)),
    ):
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("key", "offset"), STREAMS)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_masks_equal_numpy_s(on: EmulatedRunner, dtype: str, key: int, offset: int, p: float) -> None:
    for i, shape in enumerate(SHAPES):
        x = operand(shape, dtype, i, i % 3)
        y, keep = random.dropout(on, x, key, offset, p)
        expected, mask = NUMPY.dropout(x, key, offset, p)
        assert keep.tobytes() == mask.tobytes() == NUMPY.bernoulli(key, offset, shape, 1.0 - p).tobytes()
        check((y,), (expected,), 1)


@pytest.mark.parametrize("offset", range(9))
def test_every_offset_in_a_block(on: EmulatedRunner, dtype: str, offset: int) -> None:
    expected = NUMPY.uniform(9, offset, (100,), DTYPES[dtype])
    assert random.uniform(on, 9, offset, (100,), DTYPES[dtype]).tobytes() == expected.tobytes()


def test_probabilities_0_and_1(on: EmulatedRunner, dtype: str) -> None:
    assert random.bernoulli(on, 1, 0, (99,), 1.0).all()
    assert not random.bernoulli(on, 1, 0, (99,), 0.0).any()


def test_the_offset_of_a_replay_is_read_on_the_device(on: EmulatedRunner, dtype: str) -> None:
    recording = Recording()
    token = RECORDING_STEP.set(recording)
    try:
        offset = recording.number(lambda: 5)
        on.numbers[0] = np.array([26])
        actual = random.uniform(on, 9, offset, (30,), DTYPES[dtype])
        _, keep = random.dropout(on, operand((30,), dtype, 0), 9, offset, 0.5)
    finally:
        RECORDING_STEP.reset(token)
    assert recording.unbound == 0
    assert actual.tobytes() == NUMPY.uniform(9, 26, (30,), DTYPES[dtype]).tobytes()
    assert keep.tobytes() == NUMPY.bernoulli(9, 26, (30,), 0.5).tobytes()


def test_invalid_keys_and_probabilities_are_rejected(on: EmulatedRunner, dtype: str) -> None:
    with pytest.raises(ArgumentError, match="a key lies in"):
        random.random_bits(on, -1, 0, (3,))
    with pytest.raises(ArgumentError, match="a probability"):
        random.bernoulli(on, 1, 0, (3,), 1.5)
