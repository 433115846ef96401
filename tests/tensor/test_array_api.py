"""The Array API protocol, and libraries that use it on tensors; the standard's own suite tests its functions."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, ExportError, ImmutableError, ShapeError

X = np.random.default_rng(0).uniform(0.5, 2.0, (2, 3, 4)).astype(np.float32)
STANDARD = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64",
    "complex128",
)  # fmt: skip
ROOT = Path(__file__).parents[2]


# ---- the namespace ----


def test_the_namespace_is_the_package() -> None:
    x = bb.asarray(X)
    assert x.__array_namespace__() is bb
    assert x.__array_namespace__(api_version="2025.12") is bb
    assert x.__array_namespace__(api_version="2024.12") is bb
    assert bb.__array_api_version__ == "2025.12"
    with pytest.raises(ArgumentError, match="1999"):
        x.__array_namespace__(api_version="1999.12")


def test_the_extensions_are_there() -> None:
    assert {"fft", "hfft", "fftshift"} <= set(dir(bb.fft))
    assert {"cholesky", "svd", "eigh"} <= set(dir(bb.linalg))


def test_info() -> None:
    info = bb.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}
    assert info.devices() == (info.default_device(),)
    assert bb.zeros(1).device == info.default_device()
    assert info.default_dtypes() == {
        "real floating": bb.float32, "complex floating": bb.complex64, "integral": bb.int64, "indexing": bb.int64
    }  # fmt: skip
    assert set(info.dtypes()) == set(STANDARD)
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    with pytest.raises(ArgumentError, match="'strings' is not a kind"):
        info.dtypes(kind="strings")


def test_device_is_the_backend() -> None:
    x = bb.asarray(X, backend="numpy")
    assert x.device is x.backend
    moved = x.to_device("autodiff(numpy)", stream=None)
    assert moved.is_autodiff
    assert moved.numpy().tolist() == X.tolist()
    with pytest.raises(ArgumentError, match="to_device: a tensor has no streams"):
        x.to_device("numpy", stream=3)


@pytest.mark.parametrize("name", STANDARD)
def test_dtype_functions(name: str) -> None:
    dtype = getattr(bb, name)
    assert dtype.name == name
    assert bb.isdtype(dtype, dtype)
    assert bb.result_type(dtype, dtype) is dtype
    assert bb.can_cast(dtype, dtype)
    if bb.isdtype(dtype, "numeric"):
        is_int = bb.isdtype(dtype, "integral")
        ours: Any = bb.iinfo(dtype) if is_int else bb.finfo(dtype)
        theirs: Any = np.iinfo(name) if is_int else np.finfo(name)
        assert (ours.bits, ours.max, ours.min) == (theirs.bits, theirs.max, theirs.min)


def test_conj_real_and_imag_of_real_tensors() -> None:
    for x in (bb.asarray(X), bb.asarray([1, 2])):
        assert bb.conj(x) is x
        assert bb.real(x) is x
        assert bb.imag(x).dtype is x.dtype
        assert bb.imag(x).numpy().tolist() == np.imag(x.numpy()).tolist()
    with pytest.raises(DTypeError, match="conj: "):
        bb.conj(bb.asarray([True]))
    assert complex(bb.asarray(1.5)) == 1.5 + 0j


def test_functions_with_several_results_return_tuples() -> None:
    for sparse in (False, True):
        assert isinstance(bb.meshgrid(bb.arange(2), bb.arange(3), sparse=sparse), tuple)
    assert bb.meshgrid() == ()
    assert isinstance(bb.broadcast_arrays(bb.zeros(2), bb.zeros(())), tuple)
    assert bb.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    assert bb.expand_dims(bb.zeros(2), 1).shape == bb.expand_dims(bb.zeros(2), axis=1).shape == (2, 1)


def test_a_0d_tensor_is_not_a_sequence() -> None:
    x = bb.asarray(1.0)
    for function in (iter, len):
        with pytest.raises(ShapeError, match=r"a 0-d tensor .*: float32\[\]"):
            function(x)
        with pytest.raises(TypeError):
            function(x)
    assert not np.iterable(x)


def test_item_assignment_is_refused_and_augmented_assignment_rebinds() -> None:
    x = bb.asarray([1.0, 2.0])
    with pytest.raises(ImmutableError, match=r"x\.at\[i\]\.set"):
        x[0] = 3.0  # type: ignore[index]
    y = x
    y += 1
    y *= 2
    assert y.tolist() == [4.0, 6.0]
    assert x.tolist() == [1.0, 2.0]


# ---- DLPack ----


@pytest.mark.parametrize("name", STANDARD)
def test_dlpack_to_numpy_and_back(name: str) -> None:
    array = np.asarray([[0, 1, 1], [1, 0, 1]]).astype(name)
    x = bb.from_dlpack(array)
    assert (x.dtype.name, x.shape) == (name, (2, 3))
    back = np.from_dlpack(x)
    assert back.dtype == array.dtype
    assert (back == array).all()
    assert np.from_dlpack(x, copy=True).tolist() == array.tolist()


def test_dlpack_copies() -> None:
    array = np.ones(3)
    x = bb.from_dlpack(array)
    array[0] = 5
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(ExportError, match="from_dlpack: copy=False"):
        bb.from_dlpack(array, copy=False)
    with pytest.raises(ExportError, match="copy=False"):
        x.__dlpack__(copy=False)


@pytest.mark.parametrize("copy", [None, True, False])
def test_tensors_are_not_copied(copy: bool | None) -> None:
    x = bb.asarray([1.0, 2.0], backend="numpy")
    assert bb.asarray(x, copy=copy) is x
    same = bb.from_dlpack(x, copy=copy)
    assert same.device is x.device
    assert same.primitive is x.primitive
    lifted = bb.from_dlpack(x, device="autodiff(numpy)", copy=copy)
    assert (lifted.is_autodiff, lifted.tolist()) == (True, [1.0, 2.0])
    constant = bb.from_dlpack(bb.asarray([1.0]).require_grad() * 2.0, copy=copy)
    assert not constant.is_tracked
    if copy is False:
        with pytest.raises(ValueError, match=r"asarray: copy=False, but a cast to int64 copies float32\[2\]"):
            bb.asarray(x, dtype="int64", copy=False)
        with pytest.raises(BufferError, match=r"from_dlpack: copy=False, but a copy moves .* to 'null'"):
            bb.from_dlpack(x, device="null", copy=False)
    else:
        assert bb.asarray(x, dtype="int64", copy=copy).dtype is bb.int64
        assert bb.from_dlpack(x, device="null", copy=copy).shape == (2,)


def test_dlpack_exports_to_the_host_only() -> None:
    x = bb.asarray([1.0])
    assert x.__dlpack_device__() == (1, 0)
    assert x.__dlpack__(dl_device=(1, 0), max_version=(1, 0)) is not None
    with pytest.raises(BufferError, match="host memory"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ArgumentError, match="no streams"):
        x.__dlpack__(stream=1)


@pytest.mark.parametrize("name", [n for n in STANDARD if n not in ("uint16", "uint32", "uint64")])
def test_dlpack_to_torch_and_back(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = bb.asarray([[0, 1], [1, 0]], dtype=name)
    there = torch.from_dlpack(x)
    assert (str(there.dtype), tuple(there.shape)) == (f"torch.{name}", (2, 2))
    back = bb.from_dlpack(there)
    assert back.dtype is x.dtype
    assert back.tolist() == x.tolist()


def test_bfloat16_of_torch_is_refused_with_advice() -> None:
    """DLPack and NumPy's protocol both convert to NumPy, which has no bfloat16."""
    torch = pytest.importorskip("torch")
    x = torch.ones(2, dtype=torch.bfloat16)
    for call in (lambda: bb.from_dlpack(x), lambda: bb.asarray(x), lambda: bb.asarray([x, x])):
        with pytest.raises(bb.errors.ArgumentError, match=r"NumPy has no bfloat16: cast it to float32 there, and here"):
            call()
    assert bb.asarray(x.float()).astype("bfloat16").tolist() == [1.0, 1.0]


# ---- code written for any namespace ----


def standardized(x: Any) -> Any:
    """Use only the standard's functions, for arrays of any library."""
    xp = x.__array_namespace__()
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    scaled = centred / xp.sqrt(xp.mean(xp.square(centred), axis=-1, keepdims=True))
    return xp.sum(xp.where(scaled > 0, xp.exp(scaled), xp.linalg.vector_norm(scaled) * scaled), axis=(0, 2))


def test_gradients_flow_through_code_written_for_any_namespace() -> None:
    array = X.astype(np.float64)
    x = bb.asarray(array).require_grad()
    y = standardized(x)
    assert np.allclose(y.numpy(), standardized(array), rtol=1e-12)
    grad = x.grad(y.sum().backward())
    assert grad is not None
    step = 1e-6 * np.random.default_rng(1).standard_normal(array.shape)
    numeric = (standardized(array + step) - standardized(array - step)).sum() / 2
    assert abs(numeric) > 1e-8
    assert (grad.numpy() * step).sum() == pytest.approx(numeric, rel=1e-5)


def test_array_api_compat_finds_the_namespace() -> None:
    compat = pytest.importorskip("array_api_compat")
    x = bb.asarray(X)
    assert compat.is_array_api_obj(x)
    assert compat.array_namespace(x, bb.zeros(2)) is bb
    assert compat.device(x) is x.backend
    assert compat.size(x) == X.size


def consumer_results(library: str, module: str) -> dict[str, dict[str, Any]]:
    """Return the outcome of a library's functions in a separate interpreter."""
    pytest.importorskip(module, reason=f"{module} is not installed")
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests" / "tensor" / "array_api" / "consumers.py"), library],
        env={**os.environ, "SCIPY_ARRAY_API": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("library", ["scipy", "sklearn"])
def test_scipy_and_scikit_learn(library: str) -> None:
    results = consumer_results(library, library)
    assert len(results) >= 10
    assert sum("gradient" in found for found in results.values()) >= 3
    for name, found in results.items():
        assert found["shape"], name
        assert found["value"] <= 1e-12, name
        if "gradient" in found:
            assert found["kind"], name
            assert found["size"] > 1e-4, name
            assert found["gradient"] < 1e-6, name


# ---- einops ----


def einops_of(module: str) -> Any:
    """Import a module of einops after ``backburn.interop.einops``, which registers tensors."""
    pytest.importorskip("einops")
    importlib.import_module("backburn.interop.einops")
    return importlib.import_module(module)


EINOPS = {
    "rearrange": lambda e, x: e.rearrange(x, "a b c -> c (b a)"),
    "split": lambda e, x: e.rearrange(x, "a b (c d) -> d (a c) b", c=2),
    "stack": lambda e, x: e.rearrange([x, x * 2], "n a b c -> a (n b) c"),
    "mean": lambda e, x: e.reduce(x, "a b c -> b", "mean"),
    "sum": lambda e, x: e.reduce(x, "a b c -> a 1 c", "sum"),
    "max": lambda e, x: e.reduce(x, "a b (c d) -> a b c", "max", d=2),
    "repeat": lambda e, x: e.repeat(x, "a b c -> a (b n) c m", n=2, m=3),
}


@pytest.mark.parametrize("module", ["einops", "einops.array_api"])
@pytest.mark.parametrize("case", EINOPS)
def test_einops(case: str, module: str) -> None:
    theirs, numpy_too = einops_of(module), einops_of("einops")
    x = bb.asarray(X).require_grad()
    y = EINOPS[case](theirs, x)
    expected = EINOPS[case](numpy_too, X)
    assert y.shape == expected.shape
    assert np.allclose(y.numpy(), expected, rtol=1e-6)
    grad = x.grad((y * y).sum().backward())
    assert grad is not None
    step = 1e-4 * np.random.default_rng(1).standard_normal(X.shape)
    wide = X.astype(np.float64)
    ends = [np.square(EINOPS[case](numpy_too, wide + sign * step)).sum() for sign in (1, -1)]
    assert (grad.numpy() * step).sum() == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-4)


def test_einops_einsum_and_pack() -> None:
    einops = einops_of("einops")
    x, y = bb.asarray(X).require_grad(), bb.asarray(X[0])
    product = einops.einsum(x, y, "a b c, b d -> a c d")
    assert np.allclose(product.numpy(), np.einsum("abc,bd->acd", X, X[0]), rtol=1e-5)
    assert x.grad(product.sum().backward()) is not None
    packed, shapes = einops.pack([x, y], "* c")
    assert packed.shape == (9, 4)
    first, second = einops.unpack(packed, shapes, "* c")
    assert first.tolist() == x.tolist()
    assert second.tolist() == y.tolist()


def test_einops_parses_shapes_and_refuses_means_of_integers() -> None:
    einops = einops_of("einops")
    assert einops.parse_shape(bb.asarray(X), "a b _") == {"a": 2, "b": 3}
    with pytest.raises(NotImplementedError, match="mean"):
        einops.reduce(bb.asarray([[1, 2]]), "a b -> a", "mean")
