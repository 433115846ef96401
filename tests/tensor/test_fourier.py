"""Fourier transforms of tensors against NumPy's, their inverses and gradients, and short-time transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, NumericalInstabilityError, ShapeError
from backburn_numpy.ops import fft

Array = Any
GENERATOR = np.random.default_rng(3)
SIGNAL = GENERATOR.normal(size=(3, 10))
NORMS = ("backward", "ortho", "forward")


def tensor(array: Array, dtype: str | None = None) -> Any:
    return bb.asarray(np.asarray(array), dtype=dtype, backend="autodiff(numpy)")


def parts(numbers: Array) -> tuple[Any, Any]:
    return tensor(numbers.real.copy()), tensor(numbers.imag.copy())


def close(got: Any, expected: Array, tolerance: float = 1e-12) -> None:
    host = got.real.numpy() + 1j * got.imag.numpy() if isinstance(got, bb.fourier.Complex) else got.numpy()
    assert host.shape == expected.shape
    np.testing.assert_allclose(host, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [None, 1, 4, 7, 10, 13, 16])
@pytest.mark.parametrize("axis", [-1, 0])
def test_transforms_are_those_of_numpy(norm: Any, n: int | None, axis: int) -> None:
    options: dict[str, Any] = {"n": n, "axis": axis, "norm": norm}
    z = SIGNAL + 1j * SIGNAL[:, ::-1]
    close(bb.fourier.rfft(tensor(SIGNAL), **options), np.fft.rfft(SIGNAL, **options))
    close(bb.fourier.fft(tensor(SIGNAL), **options), np.fft.fft(SIGNAL, **options))
    close(bb.fourier.fft(*parts(z), **options), np.fft.fft(z, **options))
    close(bb.fourier.ifft(*parts(z), **options), np.fft.ifft(z, **options))
    close(bb.fourier.irfft(*parts(z), **options), np.fft.irfft(z, **options))
    single = bb.fourier.rfft(tensor(SIGNAL, "float32"), **options)
    assert single.real.dtype is bb.float32
    close(single, np.fft.rfft(SIGNAL, **options), 2e-6)
    half = bb.fourier.rfft(tensor(SIGNAL, "float16"), **options)
    assert half.real.dtype is bb.float16
    close(half, np.fft.rfft(SIGNAL, **options), 3e-2)


def test_sums_that_overflow_float16() -> None:
    many = bb.ones((300, 300), dtype="float16")
    for found in (bb.fourier.fftn(many, norm="forward"), bb.fourier.rfftn(many, norm="forward")):
        assert found.real[0, 0].item() == 1.0
    assert bb.fourier.ifftn(many, many).real[0, 0].item() == 1.0


@pytest.mark.parametrize("n", [1, 2, 9, 10])
def test_transforms_of_float32_without_the_ufuncs_of_numpy(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = GENERATOR.normal(size=(2, n, 3)).astype(np.float32)
    found = fft.rfft(x, 1)
    monkeypatch.setattr(fft, "UFUNCS", None)
    for mine, other in zip(found, fft.rfft(x, 1), strict=True):
        assert mine.dtype == other.dtype == np.float32
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=2e-6, atol=2e-6)


SEVERAL: list[tuple[Any, Any]] = [
    (None, None), ((0, 1), None), ((-1, 0), None), ((1, 2), (7, 4)), ((2, 0), (3, 6)), ((1,), (5,)), (1, None),
    (None, (2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("axis", "n"), SEVERAL)
def test_transforms_along_several_axes_are_those_of_numpy(norm: Any, axis: Any, n: Any) -> None:
    x = GENERATOR.normal(size=(2, 5, 4))
    z = x + 1j * x[:, ::-1]
    options: dict[str, Any] = {"axis": axis, "n": n, "norm": norm}
    theirs = {"axes": (axis,) if isinstance(axis, int) else axis or (0, 1, 2), "s": n, "norm": norm}
    close(bb.fourier.fftn(tensor(x), **options), np.fft.fftn(x, **theirs))
    close(bb.fourier.fftn(*parts(z), **options), np.fft.fftn(z, **theirs))
    close(bb.fourier.ifftn(*parts(z), **options), np.fft.ifftn(z, **theirs))
    close(bb.fourier.rfftn(tensor(x), **options), np.fft.rfftn(x, **theirs))
    close(bb.fourier.irfftn(*parts(z), **options), np.fft.irfftn(z, **theirs))
    half = bb.fourier.rfftn(tensor(x, "float16"), **options)
    assert half.imag.dtype is bb.float16
    close(half, np.fft.rfftn(x, **theirs), 3e-2)


def test_derivatives_of_transforms_along_several_axes() -> None:
    """Parseval's theorem, and central differences through transforms and their inverses."""
    x = GENERATOR.normal(size=(3, 4))

    def energy(x: Any) -> Any:
        spectrum = bb.fourier.fftn(x)
        return (spectrum.real**2 + spectrum.imag**2).sum()

    np.testing.assert_allclose(bb.grad(energy)(tensor(x)).numpy(), 2 * x.size * x, rtol=1e-12)

    def smoothed(x: Any) -> Any:
        re, im = bb.fourier.rfftn(x)
        weights = tensor(np.linspace(1.0, 0.1, re.size).reshape(re.shape))
        again = bb.fourier.ifftn(*bb.fourier.fftn(re * weights, im * weights))
        return bb.fourier.irfftn(*again, n=x.shape) ** 3.0

    bb.check_grads(smoothed, (tensor(x),), order=2)
    many = bb.vmap(lambda x: bb.fourier.rfftn(x, axis=(0, 1)).imag)(tensor(np.stack([x, 2 * x])))
    np.testing.assert_allclose(many.numpy(), np.fft.rfftn(np.stack([x, 2 * x]), axes=(1, 2)).imag, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("length", [1, 2, 9, 10])
def test_inverses(norm: str, length: int) -> None:
    x = SIGNAL[:, :length]
    close(bb.fourier.irfft(*bb.fourier.rfft(tensor(x), norm=norm), n=length, norm=norm), x)
    found = bb.fourier.ifft(*bb.fourier.fft(tensor(x), tensor(-x), norm=norm), norm=norm)
    close(found, x - 1j * x)


def test_the_energy_of_a_spectrum_has_the_gradient_of_the_signal() -> None:
    """Parseval: the squares of all n frequencies add up to n times those of the signal."""

    def energy(x: Any) -> Any:
        spectrum = bb.fourier.fft(x)
        return (spectrum.real**2 + spectrum.imag**2).sum()

    for x in (SIGNAL[0], SIGNAL[0, :9]):
        np.testing.assert_allclose(bb.grad(energy)(tensor(x)).numpy(), 2 * len(x) * x, rtol=1e-12)
        np.testing.assert_allclose(bb.hessian(energy)(tensor(x)).numpy(), 2 * len(x) * np.eye(len(x)), atol=1e-10)


def test_gradients_through_both_parts_and_one() -> None:
    """A filter is linear: its transpose is the filter with the response's conjugate."""
    response = np.fft.rfft(GENERATOR.normal(size=10))
    weights = GENERATOR.normal(size=10)

    def filtered(x: Any) -> Any:
        re, im = bb.fourier.rfft(x)
        a, b = parts(response)
        return (bb.fourier.irfft(re * a - im * b, re * b + im * a, n=10) * tensor(weights)).sum()

    expected = np.fft.irfft(np.conj(response) * np.fft.rfft(weights), 10)
    np.testing.assert_allclose(bb.grad(filtered)(tensor(SIGNAL[0])).numpy(), expected, rtol=1e-10)
    cosines = np.cos(2 * np.pi * np.outer(np.arange(6), np.arange(10)) / 10).sum(0)
    only_real = bb.grad(lambda x: bb.fourier.rfft(x).real.sum())(tensor(SIGNAL[0]))
    np.testing.assert_allclose(only_real.numpy(), cosines, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8])
def test_windows(n: int) -> None:
    pairs: list[tuple[Any, Callable[[int], Array]]] = [
        (bb.fourier.hann_window, np.hanning),
        (bb.fourier.hamming_window, np.hamming),
        (bb.fourier.blackman_window, np.blackman),
    ]
    for ours, theirs in pairs:
        close(ours(n, False, dtype="float64"), theirs(n))
        close(ours(n, dtype="float64"), theirs(n + 1)[:n] if n > 1 else np.ones(n))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_windows_of_16_bits(dtype: str) -> None:
    """16-bit floats cannot represent the positions in a long window; values still err by at most one rounding."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for n in (3001, 70_001):
        window = bb.fourier.hann_window(n, periodic=False, dtype=dtype)
        assert window.dtype == dtype
        rounding = 2.0**-11 if dtype == "float16" else 2.0**-8
        np.testing.assert_allclose(window.astype("float64").numpy(), np.hanning(n), atol=rounding)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("size", "hop"), [(4, 1), (4, 2), (5, 2), (6, 6), (1, 1)])
@pytest.mark.parametrize("norm", NORMS)
def test_short_time_transforms(center: bool, size: int, hop: int, norm: Any) -> None:
    window = GENERATOR.uniform(0.5, 1.0, size)
    options: dict[str, Any] = {"hop": hop, "window": tensor(window), "center": center, "norm": norm}
    padded = np.pad(SIGNAL, ((0, 0), (size // 2, size // 2)), mode="reflect") if center else SIGNAL
    starts = range(0, padded.shape[1] - size + 1, hop)
    expected = np.stack([np.fft.rfft(padded[:, s : s + size] * window, norm=norm) for s in starts], -1)
    found = bb.fourier.stft(tensor(SIGNAL), size, **options)
    close(found, expected)
    covered = starts[-1] + size - (size // 2 if center else 0)
    back = bb.fourier.istft(*found, size=size, length=12, **options)
    assert back.shape == (3, 12)
    count = min(covered, 10)
    np.testing.assert_allclose(back.numpy()[:, :count], SIGNAL[:, :count], rtol=1e-10)


@pytest.mark.parametrize(("size", "win_length"), [(8, 5), (7, 4), (6, 6), (5, 1)])
@pytest.mark.parametrize("given", [False, True])
def test_shorter_windows_are_centered(size: int, win_length: int, given: bool) -> None:
    torch = pytest.importorskip("torch")
    signal, window = GENERATOR.normal(size=(2, 20)), GENERATOR.uniform(0.5, 1.0, win_length)
    expected = torch.stft(
        torch.tensor(signal), size, 2, win_length, torch.tensor(window) if given else torch.ones(win_length).double(),
        return_complex=True,
    )  # fmt: skip
    options: dict[str, Any] = {"hop": 2, "win_length": win_length, "window": tensor(window) if given else None}
    found = bb.fourier.stft(tensor(signal), size, **options)
    close(found, expected.numpy())
    bb.check_grads(lambda x: bb.fourier.stft(x, size, **options).imag, (tensor(signal),), order=2)
    if win_length > 2:
        back = bb.fourier.istft(*found, size=size, **options, length=20)
        np.testing.assert_allclose(back.numpy()[:, :18], signal[:, :18], rtol=1e-10)


def test_windows_that_do_not_fit() -> None:
    x = tensor(GENERATOR.normal(size=20))
    with pytest.raises(ArgumentError, match=r"stft: a window of 5 points is longer than 4. Operand: float64\["):
        bb.fourier.stft(x, 4, win_length=5)
    with pytest.raises(ShapeError, match=r"stft: the window has 3 points. .*float64\[4\]"):
        bb.fourier.stft(x, 4, win_length=3, window=bb.ones(4, dtype="float64"))
    with pytest.raises(ArgumentError, match="stft: win_length is an integer of at least 1, not 0"):
        bb.fourier.stft(x, 4, win_length=0)


def test_short_time_gradients() -> None:
    """A transform followed by its inverse is the identity, so the gradient equals the cotangent."""
    weights = GENERATOR.normal(size=10)
    window = bb.fourier.hann_window(4, dtype="float64", backend="autodiff(numpy)")

    def there_and_back(x: Any) -> Any:
        spectrum = bb.fourier.stft(x, 4, hop=1, window=window)
        return (bb.fourier.istft(*spectrum, hop=1, window=window) * tensor(weights)).sum()

    np.testing.assert_allclose(bb.grad(there_and_back)(tensor(SIGNAL[0])).numpy(), weights, rtol=1e-10)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: bb.fourier.rfft(x, axis=2), AxisError, "rfft: axis 2 is out of range"),
        (lambda x: bb.fourier.rfft(x, n=0), ArgumentError, "rfft: n is an integer of at least 1, not 0"),
        (lambda x: bb.fourier.rfft(x, norm="unitary"), ArgumentError, "rfft: norm is one of 'backward'"),
        (lambda x: bb.fourier.rfft(bb.zeros((2, 0))), ShapeError, "rfft: axis 1 has no element to transform"),
        (lambda x: bb.fourier.rfft(bb.asarray([True])), DTypeError, "rfft: takes float tensors, not bool"),
        (lambda x: bb.fourier.irfft(x, x[:, :2]), ShapeError, "irfft: the real and imaginary parts differ"),
        (lambda x: bb.fourier.irfft(x[:, :1], x[:, :1]), ArgumentError, "irfft: n must be given for one frequency"),
        (lambda x: bb.fourier.rfftn(x, axis=(0, 2)), AxisError, "rfftn: axis 2 is out of range"),
        (lambda x: bb.fourier.fftn(x, axis=(0, -2)), AxisError, "fftn: "),
        (lambda x: bb.fourier.fftn(x, axis=()), ShapeError, "fftn: there is no axis to transform"),
        (lambda x: bb.fourier.ifftn(x, x, n=(2,)), ArgumentError, r"ifftn: n is a length for each axis, 2, not \(2,\)"),
        (lambda x: bb.fourier.irfftn(x, x, n=(2, 0)), ArgumentError, "irfftn: each n is an integer of at least 1"),
        (lambda x: bb.fourier.rfftn(x, norm="unitary"), ArgumentError, "norm is one of 'backward'"),
        (lambda x: bb.fourier.ifft(x, 1.0), DTypeError, "ifft: takes a tensor, not float"),  # type: ignore[arg-type]
        (lambda x: bb.fourier.stft(x, 20, center=False), ShapeError, "stft: the signal is shorter than a window of 20"),
        (lambda x: bb.fourier.stft(x, 4, window=x), ShapeError, "stft: the window has 4 points"),
        (lambda x: bb.fourier.stft(x, 4, hop=0), ArgumentError, "stft: hop is an integer of at least 1, not 0"),
        (lambda x: bb.fourier.istft(x, x, size=6), ShapeError, "istft: windows of 6 points have 4 frequencies"),
        (lambda x: bb.fourier.istft(x, x, hop=9), NumericalInstabilityError, "istft: a point lies under no window"),
        (lambda x: bb.fourier.hann_window(-1), ArgumentError, "hann_window: the length is an integer of at least 0"),
        (lambda x: bb.fourier.hann_window(None), ArgumentError, "hann_window: the length is an integer"),  # type: ignore[arg-type]
        (lambda x: bb.fourier.hann_window(4, dtype="int64"), DTypeError, "hann_window: the dtype is a float dtype"),
    ],
)
def test_errors(call: Callable[[Any], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(tensor(SIGNAL))
