"""Fourier transforms of complex tensors: against NumPy's and PyTorch's, their inverses and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ShapeError

GENERATOR = np.random.default_rng(5)
Z = GENERATOR.normal(size=(2, 5, 4)) + 1j * GENERATOR.normal(size=(2, 5, 4))
z = bb.asarray(Z)
NORMS = ("backward", "ortho", "forward")
#: Transforms along one axis, and whether they take complex operands.
ONE = {"fft": True, "ifft": True, "hfft": True, "irfft": True, "rfft": False, "ihfft": False}
SEVERAL = {"fftn": True, "ifftn": True, "irfftn": True, "rfftn": False}


def close(got: Any, expected: Any, tolerance: float = 1e-12) -> None:
    assert got.dtype is (bb.complex128 if expected.dtype.kind == "c" else bb.float64)
    np.testing.assert_allclose(got.numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ONE)
def test_transforms_along_one_axis_are_those_of_numpy(name: str, norm: str) -> None:
    for n in (None, 1, 3, 8):
        for axis in (-1, 1):
            for x in (Z, Z.real)[not ONE[name] :]:
                theirs = getattr(np.fft, name)(x, n=n, axis=axis, norm=norm)
                close(getattr(bb.fft, name)(bb.asarray(x), n=n, axis=axis, norm=norm), theirs)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", SEVERAL)
def test_transforms_along_several_axes_are_those_of_numpy(name: str, norm: str) -> None:
    for s, axes in ((None, None), (None, (0, -1)), ((3, 6), (2, 0)), ((5,), (1,)), ((2, 3, 4), None), ((3, 2), None)):
        for x in (Z, Z.real)[not SEVERAL[name] :]:
            theirs = axes if axes or s is None else tuple(range(-len(s), 0))
            expected = getattr(np.fft, name)(x, s=s, axes=theirs, norm=norm)
            close(getattr(bb.fft, name)(bb.asarray(x), s=s, axes=axes, norm=norm), expected)


def test_narrow_dtypes_stay_narrow() -> None:
    narrow = {name: getattr(bb.fft, name)(bb.asarray(Z.astype("complex64"))) for name in ("fft", "ifftn", "irfft")}
    assert [x.dtype.name for x in narrow.values()] == ["complex64", "complex64", "float32"]
    for x in (bb.ones((2, 4), dtype="float16"), bb.ones((2, 4), dtype="int64"), bb.ones((2, 4))):
        assert bb.fft.fft(x).dtype is bb.fft.rfftn(x).dtype is bb.complex64
    for name, x in narrow.items():
        np.testing.assert_allclose(x.numpy(), getattr(np.fft, name)(Z), rtol=1e-5, atol=1e-5)
    many = bb.ones((300, 300), dtype="float16")  # the sum overflows float16
    assert bb.fft.fftn(many, norm="forward")[0, 0].item() == 1


@pytest.mark.parametrize("norm", NORMS)
def test_inverses(norm: str) -> None:
    close(bb.fft.ifft(bb.fft.fft(z, norm=norm), norm=norm), Z)
    close(bb.fft.ifftn(bb.fft.fftn(z, norm=norm), norm=norm), Z)
    x = bb.asarray(Z.real)
    for n in (4, 5):
        close(bb.fft.irfft(bb.fft.rfft(x, n=n, norm=norm), n=n, norm=norm)[..., :4], Z.real)
        close(bb.fft.hfft(bb.fft.ihfft(x, n=n, norm=norm), n=n, norm=norm)[..., :4], Z.real)
    close(bb.fft.irfftn(bb.fft.rfftn(x, norm=norm), s=x.shape, norm=norm), Z.real)


def test_frequencies() -> None:
    for n in (1, 2, 7, 8):
        wide: Any = {"d": 0.1, "dtype": "float64", "backend": "numpy"}
        close(bb.fft.fftfreq(n, **wide), np.fft.fftfreq(n, 0.1))
        close(bb.fft.rfftfreq(n, **wide), np.fft.rfftfreq(n, 0.1))
    for axes in (0, -1, None, (0, 1), (-1,), ()):
        close(bb.fft.fftshift(z, axes=axes), np.fft.fftshift(Z, axes=axes))
        close(bb.fft.ifftshift(z, axes=axes), np.fft.ifftshift(Z, axes=axes))
    assert bb.fft.fftfreq(4, device="numpy").dtype is bb.float32


#: Real losses through each transform: ``b`` is ``bb`` or ``torch``, ``f`` its ``fft`` module.
LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fft": lambda b, f, x: b.sum(b.abs(f.fft(x, norm="ortho")) ** 3),
    "ifft": lambda b, f, x: b.sum(b.real(f.ifft(x, n=6) ** 3)),
    "fftn": lambda b, f, x: b.sum(b.abs(f.fftn(x) * x) ** 2),
    "ifftn": lambda b, f, x: b.sum(b.imag(f.ifftn(x * x, s=(3, 6)))),
    "irfft": lambda b, f, x: b.sum(f.irfft(x) ** 3) + b.sum(f.irfft(x, n=5, norm="forward") ** 2),
    "irfftn": lambda b, f, x: b.sum(f.irfftn(x, s=(5, 3)) ** 3),
    "hfft": lambda b, f, x: b.sum(f.hfft(x, n=7) ** 3),
    "rfft": lambda b, f, x: b.sum(b.abs(f.rfft(b.real(x) * b.imag(x))) ** 3),
    "rfftn": lambda b, f, x: b.sum(b.abs(f.rfftn(b.real(x), norm="forward")) ** 3),
    "ihfft": lambda b, f, x: b.sum(b.real(f.ihfft(b.imag(x)) ** 3)),
    "shift": lambda b, f, x: b.sum(b.abs(f.ifftshift(f.fft(f.fftshift(x))) + x) ** 2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_both_orders_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")

    def loss(x: Any) -> Any:
        return LOSSES[name](bb, bb.fft, x)

    x = bb.asarray(Z[0])
    there = torch.tensor(Z[0], requires_grad=True)
    (first,) = torch.autograd.grad(LOSSES[name](torch, torch.fft, there), there, create_graph=True)
    (second,) = torch.autograd.grad((first.abs() ** 2).sum(), there)
    found = bb.grad(loss)(x)
    assert isinstance(found, bb.ComplexTensor)
    np.testing.assert_allclose(found.numpy(), first.detach().resolve_conj().numpy(), rtol=1e-10, atol=1e-10)
    twice = bb.grad(lambda x: bb.sum(bb.abs(bb.grad(loss)(x)) ** 2))(x)
    np.testing.assert_allclose(twice.numpy(), second.resolve_conj().numpy(), rtol=1e-10, atol=1e-10)
    along = bb.asarray(Z[1])
    pushed = bb.jvp(loss, (x,), (along,))[1].item()
    assert pushed == pytest.approx(np.sum(found.numpy().conj() * Z[1]).real, rel=1e-12)
    many = bb.vmap(bb.grad(loss))(z)
    for i in range(2):
        np.testing.assert_allclose(many[i].numpy(), bb.grad(loss)(z[i]).numpy(), rtol=1e-12, atol=1e-12)
    bb.check_grads(loss, (x,))


def test_the_derivative_of_a_transform_is_the_transform() -> None:
    for name in ("fft", "ifft", "fftn", "ifftn"):
        function = getattr(bb.fft, name)
        close(bb.jvp(function, (z,), (z * 2j,))[1], getattr(np.fft, name)(2j * Z))
    x = bb.asarray(Z.real)
    close(bb.jvp(bb.fft.rfft, (x,), (x * 3.0,))[1], np.fft.rfft(3 * Z.real))


def test_recorded_steps_are_bitwise_identical() -> None:
    def step(x: Any) -> Any:
        return bb.value_and_grad(lambda x: bb.sum(bb.abs(bb.fft.ifft(bb.fft.fft(x) * 2j)) ** 3))(x)

    recorded = bb.capture(step, state=False)
    for _ in range(3):
        for got, expected in zip(recorded(z), step(z), strict=True):
            np.testing.assert_array_equal(got.numpy(), expected.numpy())


def test_transforms_do_not_change_their_operands() -> None:
    """No transform writes to its operand through views of its real and imaginary parts."""
    x = bb.asarray(Z)
    for name in ("fft", "ifft", "fftn", "irfft", "hfft"):
        getattr(bb.fft, name)(x)
        np.testing.assert_array_equal(x.numpy(), Z)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: bb.fft.fft(z, axis=3), AxisError, "fft: axis 3 is out of range"),
        (lambda: bb.fft.fft(z, axis=1j), AxisError, "fft: an axis is an integer"),  # type: ignore[arg-type]
        (lambda: bb.fft.ifft(z, n=0), ArgumentError, "ifft: n is an integer of at least 1, not 0"),
        (lambda: bb.fft.fft(z, norm="unitary"), ArgumentError, "fft: norm is one of 'backward'"),
        (lambda: bb.fft.hfft(z, norm="unitary"), ArgumentError, "hfft: norm is one of 'backward'"),
        (lambda: bb.fft.fft(z[:, :0], axis=1), ShapeError, "fft: axis 1 has no element to transform"),
        (lambda: bb.fft.rfft(z), DTypeError, "rfft: takes no complex tensors: .*bb.real"),
        (lambda: bb.fft.ihfft(z), DTypeError, "ihfft: takes no complex tensors"),
        (lambda: bb.fft.fft(bb.asarray([True])), DTypeError, "fft: takes .*not bool"),
        (lambda: bb.fft.fft([1.0]), DTypeError, "fft: takes a tensor, not list"),  # type: ignore[arg-type]
        (lambda: bb.fft.irfft(z[..., :1]), ArgumentError, "irfft: n must be given for one frequency"),
        (lambda: bb.fft.fftn(z, axes=()), ShapeError, "fftn: there is no axis to transform"),
        (lambda: bb.fft.fftn(z, s=(2,), axes=(0, 1)), ArgumentError, r"fftn: s is a length for each axis, 2, not"),
        (lambda: bb.fft.irfftn(z, s=(2, 0)), ArgumentError, "irfftn: each s is an integer of at least 1"),
        (lambda: bb.fft.fftn(z, axes=(0, -3)), AxisError, "fftn: "),
        (lambda: bb.fft.fftfreq(4.0), ArgumentError, "fftfreq: n is an integer of at least 1, not 4.0"),  # type: ignore[arg-type]
        (lambda: bb.fft.rfftfreq(4, d=0), ArgumentError, "rfftfreq: d is the time between samples, and not 0"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
