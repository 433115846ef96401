"""The backends under examples/backends: the contract can be implemented with other array libraries.

A backend without its library is skipped. Limitations of a library are listed with the reason. JAX compiles every
operation for every shape, so it gets one sample of each required operation, and all samples only with ``JAX_FULL=1`` in
the environment (several minutes).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.complex_operands import COMPUTED, NUMPY, cases_of, compare, operands_in

from backburn.autodiff import Autodiff
from backburn.backend import BackendWarning
from backburn.backend.registry import load_backend, register_backend
from backburn.base.dtypes import DTYPES, as_dtype
from backburn.base.errors import BackburnError, LinearAlgebraError, NumericalInstabilityError, ShapeError, Unsupported
from backburn.cli import main
from backburn.conformance import SAMPLES, Sample, checks
from backburn.conformance.checks.kinds import VALUE_KINDS
from backburn.conformance.samples.calls import arrays, as_tuple, dtypes_of, map_operands
from backburn.io import load_model
from backburn.ops.table import OPERATIONS

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "backends"
#: The library, the module and the class of each backend, by name.
BACKENDS = {
    "torch": ("torch", "backburn_torch", "TorchBackend"),
    "array_api_strict": ("array_api_strict", "backburn_array_api_strict", "StrictBackend"),
    "jax": ("jax", "backburn_jax", "JaxBackend"),
}
#: Backends that get only a few checks.
FEW = () if "JAX_FULL" in os.environ else ("jax",)

each_backend = pytest.mark.parametrize("base", BACKENDS, indirect=True)


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest) -> Iterator[Any]:
    name = request.param
    library, module, attribute = BACKENDS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES / module))
        register_backend(name, getattr(importlib.import_module(module), attribute))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackendWarning)
        found = load_backend(name)
    yield found
    if name == "jax":  # a gigabyte of compiled functions
        importlib.import_module("jax").clear_caches()


@each_backend
def test_every_required_operation_is_there(base: Any) -> None:
    lacking = [n for n, o in OPERATIONS.items() if o.required and getattr(type(base), n, None) in (o.body, None)]
    assert not lacking


@each_backend
@pytest.mark.parametrize("name", SAMPLES)
def test_values_dtypes_and_shapes(base: Any, name: str) -> None:
    found = list(checks(base, ops=[name], kinds=[*VALUE_KINDS, "dtype", "shape"]))
    for check in found if base.spec not in FEW else found[: OPERATIONS[name].required]:
        check()


@each_backend
def test_complex_operands(base: Any) -> None:
    """Every operation that takes complex tensors agrees with the NumPy backend."""
    for name in COMPUTED if base.spec not in FEW else ("complex", "mul", "tan", "sum", "matmul", "where"):
        for dtype in ("complex64", "complex128"):
            for sample in cases_of(name, 0)[: 3 if base.spec not in FEW else 1]:
                operands = operands_in(name, sample, dtype)
                expected = as_tuple(getattr(NUMPY, name)(*operands, **sample.attributes))
                found = as_tuple(getattr(base, name)(*map_operands(operands, base.from_numpy), **sample.attributes))
                for x, y in zip(found, expected, strict=True):
                    assert base.dtype(x) == NUMPY.dtype(y), name
                    compare(base.to_numpy(x), y, 32.0)


@pytest.mark.parametrize("base", ["array_api_strict"], indirect=True)
@pytest.mark.parametrize("name", [name for name, operation in OPERATIONS.items() if operation.differentiable])
def test_derivatives(base: Any, name: str) -> None:
    """Rules are the same on every backend; the strictest one shows that they use only the contract."""
    for check in checks(base, ops=[name], kinds=["convention", "second_gradient"], dtypes=["float64"]):
        check()


@each_backend
def test_its_package_has_an_entry_point(base: Any) -> None:
    _, module, attribute = BACKENDS[base.spec]
    project = tomllib.loads((EXAMPLES / module / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["backburn.backends"] == {base.spec: f"{module}:{attribute}"}
    assert len((EXAMPLES / module / f"{module}.py").read_text().splitlines()) <= 200


@each_backend
def test_it_is_loaded_and_pickled_by_its_spec(base: Any) -> None:
    assert load_backend(base.spec) is base
    assert pickle.loads(pickle.dumps(base)) is base
    outer: Any = load_backend(f"autodiff({base.spec})")
    assert outer.inner_backend is base


@each_backend
def test_equal_backends_are_one_backend(base: Any) -> None:
    same = type(base)()
    assert same == base
    outer: Any = Autodiff(base)
    x = outer.set_require_grad(outer.from_inner(base.from_numpy(np.array([1.0, 2.0]))), True)
    gradient = Autodiff(same).grad(x, outer.backward(outer.mul(x, x)))
    np.testing.assert_array_equal(base.to_numpy(gradient), [2.0, 4.0])


@each_backend
def test_host_arrays_are_copied_whatever_their_layout(base: Any) -> None:
    plain = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    frozen = plain.copy()
    frozen.flags.writeable = False
    for array in (plain, plain[::-1, ::-1], plain.T, plain.astype(">f4"), frozen, plain[0, 0]):
        np.testing.assert_array_equal(base.to_numpy(base.from_numpy(np.asarray(array))), array)
    source = plain.copy()
    x = base.from_numpy(source)
    source[:] = -1
    base.to_numpy(x)[:] = -1
    np.testing.assert_array_equal(base.to_numpy(x), plain)


@each_backend
def test_an_index_out_of_range_raises(base: Any) -> None:
    x = base.from_numpy(np.arange(12.0).reshape(3, 4))
    for index in (3, -4, 2**40):
        wrong = base.from_numpy(np.full((1, 4), index))
        for call in (
            lambda i: base.take(x, i, 0),
            lambda i: base.take_along_axis(x, i, 0),
            lambda i: base.scatter(x, i, 1.0, 0, "assign"),
            lambda i: base.scatter(x, i, 1.0, 0, "add"),
        ):
            with pytest.raises(IndexError):
                call(wrong)


@each_backend
def test_shapes_that_the_rule_refuses_raise(base: Any) -> None:
    """Required operations refuse operands with a longer or an additional axis, if the shape rule does."""
    accepted = []
    required = [n for n, o in OPERATIONS.items() if o.required and o.shape is not None and n in SAMPLES]
    for name, sample in ((n, s) for n in required for s in SAMPLES[n].cases[: 1 if base.spec in FEW else None]):
        if not dtypes_of(name, sample, base):
            continue
        operands = arrays(sample, "float64")
        for place, operand in enumerate(operands):
            if not isinstance(operand, np.ndarray):
                continue
            for other in [operand[None], *(np.repeat(operand, 2, axis) for axis in range(operand.ndim))]:
                call = [*operands[:place], other, *operands[place + 1 :]]
                if not refused(name, sample, call):
                    continue
                try:
                    getattr(base, name)(*map_operands(call, base.from_numpy), **sample.attributes)
                except Exception:  # of any type: callers report what is wrong
                    continue
                accepted.append((name, [np.shape(x) for x in call], sample.attributes))
    assert not accepted


def refused(name: str, sample: Sample, call: list[Any]) -> bool:
    """Whether the shape rule of an operation refuses the operands."""
    rule = OPERATIONS[name].shape
    assert rule is not None
    defaults = {n: d for n, d in OPERATIONS[name].attributes.items() if n not in sample.attributes}
    try:
        rule(*(x.shape if isinstance(x, np.ndarray) else None for x in call), **defaults, **sample.attributes)
    except BackburnError:
        return True
    return False


@each_backend
def test_a_matrix_without_a_result_raises(base: Any) -> None:
    singular = base.from_numpy(np.array([[1.0, 2.0], [2.0, 4.0]]))
    with pytest.raises(LinearAlgebraError):
        base.solve(singular, base.from_numpy(np.ones((2, 1))))
    with pytest.raises(LinearAlgebraError):
        base.cholesky(base.from_numpy(-np.eye(2)))


@each_backend
def test_a_dtype_that_is_not_declared_is_refused(base: Any) -> None:
    for dtype in DTYPES.values():
        if dtype.kind == "quantized" or dtype in base.capabilities.dtypes:
            continue
        for call in (
            lambda d: base.full((), 1, d),
            lambda d: base.astype(base.from_numpy(np.zeros(2)), d),
            lambda d: base.arange(0, 3, 1, d),
            lambda d: base.from_numpy(np.zeros(2, d.dtype)),
        ):
            with pytest.raises(Unsupported):
                call(dtype)


@each_backend
def test_quantized_tensors_move(base: Any) -> None:
    x = base.from_numpy(np.arange(-3.0, 3.0).reshape(2, 3))
    q = base.quantize(x)
    assert base.dtype(q).kind == "quantized"
    moved = base.permute_dims(base.broadcast_to(base.reshape(q, (1, 3, 2)), (2, 3, 2)), (2, 0, 1))
    expected = np.broadcast_to(base.to_numpy(q).reshape(1, 3, 2), (2, 3, 2)).transpose(2, 0, 1)
    np.testing.assert_array_equal(base.to_numpy(moved), expected)
    with pytest.raises(NumericalInstabilityError):
        base.quantize(base.from_numpy(np.array([1.0, np.nan])))


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("torch", "qint4_symmetric_block2_float32"),
        ("array_api_strict", "qint4_symmetric_block2_float32"),
        *((backend, "quint8_affine_channel1_float32") for backend in BACKENDS),
    ],
    indirect=["base"],
)
def test_quantized_tensors_of_other_schemes(base: Any, name: str) -> None:
    x = np.linspace(-3.0, 3.0, 20).reshape(4, 5)
    scheme: Any = as_dtype(name)
    ours, numpy = base.quantize(base.from_numpy(x), scheme), load_backend("numpy")
    theirs = numpy.quantize(x, scheme)
    np.testing.assert_array_equal(base.to_numpy(ours), numpy.to_numpy(theirs))
    key = (slice(3, 0, -1), slice(2, 4, 1))
    moved = base.slice(base.concat([ours, ours], 0), key)
    np.testing.assert_array_equal(base.to_numpy(moved), numpy.to_numpy(theirs)[3:0:-1, 2:4])
    taken = base.take(ours, base.from_numpy(np.array([3, 1])), 0)
    np.testing.assert_array_equal(base.to_numpy(taken), numpy.to_numpy(theirs)[[3, 1]])
    with pytest.raises(ShapeError, match=name):
        base.reshape(ours, (20,))


@pytest.mark.parametrize("base", ["jax"], indirect=True)
def test_jax_warns_that_it_enables_64_bit_dtypes(base: Any) -> None:
    import jax

    config: Any = jax.config
    config.update("jax_enable_x64", False)
    try:
        with pytest.warns(BackendWarning, match="jax_enable_x64"):
            type(base)()
        assert config.jax_enable_x64
    finally:
        config.update("jax_enable_x64", True)


SMALL = """
[model]
hidden = [64]
[train]
epochs = 1
[output]
folder = "{folder}"
"""


@each_backend
def test_the_digits_train_as_on_numpy(base: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The option ``--backend`` is enough; equal random numbers give the same network up to rounding."""
    networks = []
    for spec in ("numpy", base.spec):
        folder = tmp_path / spec
        config = tmp_path / "small.toml"
        config.write_text(SMALL.format(folder=folder.as_posix()))
        assert main(["train", str(config), "--backend", f"autodiff({spec})"]) == 0
        assert f"autodiff({spec})" in capsys.readouterr().out
        networks.append(load_model(folder / "model.safetensors").state)
    plain, foreign = networks
    assert plain.keys() == foreign.keys()
    for name in plain:
        np.testing.assert_allclose(foreign[name], plain[name], rtol=1e-3, atol=1e-3, err_msg=name)


@each_backend
def test_integers_outside_the_dtypes_range_never_wrap(base: Any) -> None:
    x = base.from_numpy(np.array([1, 5, 9], np.uint8))
    for name in ("add", "sub", "mul", "floor_divide", "maximum", "bitwise_and"):
        for number in (-1, 256):
            with pytest.raises((OverflowError, TypeError, RuntimeError)):
                base.to_numpy(getattr(base, name)(x, number))
    with suppress(OverflowError, TypeError):
        assert not base.to_numpy(base.less(x, -1)).any()
    assert base.to_numpy(base.bitwise_and(x, 255)).tolist() == [1, 5, 9]
