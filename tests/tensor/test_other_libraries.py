"""Tensors in other libraries, in notebooks, and in Python's built-in functions."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.nn.module_repr import LONGEST_HTML, repr_html
from backburn.tensor.core import arrow, host
from backburn.tensor.core.print_options import OPTIONS

DTYPES = [name for name in arrow.FORMATS if name != "bool"]


def values(name: str, *shape: int) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(name)


# ---- dtypes ----


@pytest.mark.parametrize("name", [*DTYPES, "bool"])
def test_numpy_understands_dtypes(name: str) -> None:
    x = bb.zeros((2,), dtype=name)
    assert np.dtype(x.dtype) == np.dtype(name)
    assert x.dtype.byteorder == np.dtype(name).byteorder
    assert np.empty(3, x.dtype).dtype == np.dtype(name)


def test_numpy_reads_the_dtype_of_a_tensor() -> None:
    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4):
        assert np.result_type(bb.zeros(2), np.float64) == np.float64
        assert np.result_type(bb.ones(2).quantize()) == np.float32


@pytest.mark.parametrize("wrong", [bb.ones(2), np.ones(2)])
def test_an_array_is_not_a_dtype(wrong: Any) -> None:
    with pytest.raises(DTypeError, match=r"array\(\[1., 1.\]\)|Tensor\(\[1., 1.\].* is not a dtype of backburn"):
        bb.zeros(2, dtype=wrong)


# ---- libraries ----


def test_jax_takes_tensors() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for x in (bb.asarray([[1.5, 2.5]]), bb.asarray([1, 2], dtype="int32"), bb.asarray([True, False])):
        found = jnp.asarray(x)
        assert found.dtype == np.dtype(x.dtype)
        assert np.array_equal(np.asarray(found), x.numpy())


def test_safetensors_writes_a_state(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    state = {**model.state_dict(), "turned": bb.asarray(values("float32", 3, 4)).T, "half": bb.ones(3, dtype="float16")}
    library.save_file(state, tmp_path / "x")
    found = library.load_file(tmp_path / "x")
    assert found.keys() == state.keys()
    for name, x in state.items():
        assert found[name].dtype == np.dtype(x.dtype)
        assert np.array_equal(found[name], x.numpy()), name


def test_addresses_last_as_long_as_their_tensors() -> None:
    turned = bb.asarray(values("float64", 2, 3)).T
    assert list((ctypes.c_double * 6).from_address(turned.ctypes.data)) == [0, 3, 1, 4, 2, 5]
    assert turned.ctypes.data == turned.ctypes.data
    assert len(host._ADDRESSED) == 1
    del turned
    gc.collect()
    assert not host._ADDRESSED


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (0,), (4, 3), (0, 2)])
def test_polars_takes_tensors(name: str, shape: tuple[int, ...]) -> None:
    pl = pytest.importorskip("polars")
    x = values(name, *shape)
    made = pl.Series(bb.asarray(x)) if len(shape) == 1 else pl.DataFrame(bb.asarray(x))
    assert np.array_equal(made.to_numpy(), x)
    if len(shape) == 2:
        assert made.columns == [f"column_{i}" for i in range(shape[1])]
    del made
    gc.collect()
    assert not arrow._KEPT


def test_polars_takes_columns_and_bools() -> None:
    pl = pytest.importorskip("polars")
    truths = np.arange(19) % 3 == 0
    frame = pl.DataFrame({"x": bb.asarray(np.arange(19.0)), "y": bb.asarray(truths)})
    assert frame["y"].to_list() == truths.tolist()
    assert frame.filter(pl.col("y"))["x"].to_list() == np.arange(19.0)[truths].tolist()


def capsules(x: Any) -> Iterator[Any]:
    yield from x.__arrow_c_array__()


def test_unconsumed_capsules_are_released() -> None:
    found = list(capsules(bb.ones((3, 2))))
    assert len(arrow._IN_CAPSULES) == 2
    assert len(arrow._KEPT) == 6
    del found
    gc.collect()
    assert not arrow._KEPT
    assert not arrow._IN_CAPSULES


def test_tensors_that_arrow_cannot_represent_are_refused() -> None:
    for x in (bb.ones(()), bb.ones((2, 2, 2))):
        with pytest.raises(ShapeError, match=r"vectors and matrices, not float32\["):
            x.__arrow_c_array__()
    for y in (bb.ones(2, dtype="bfloat16"), bb.ones(2).quantize()):
        with pytest.raises(DTypeError, match="Arrow has no"):
            y.__arrow_c_array__()


# ---- Python ----


def test_rounding_by_python() -> None:
    x = bb.asarray([0.125, 2.345, -1.5], dtype="float64")
    assert round(x, 2).tolist() == np.round(x.numpy(), 2).tolist()
    assert round(x).tolist() == [0.0, 2.0, -2.0]
    assert round(bb.asarray([3])).tolist() == [3]
    w = x.require_grad()
    gradient = w.grad(round(w, 1).sum().backward())
    assert gradient is not None
    assert gradient.tolist() == [0.0, 0.0, 0.0]


# ---- printing ----


@pytest.fixture
def options() -> Iterator[None]:
    before = dict(OPTIONS)
    yield
    OPTIONS.clear()
    OPTIONS.update(before)


def test_print_options(options: None) -> None:
    x = bb.asarray([3.14159265, 1e-9, 100.0], backend="numpy")
    bb.set_printoptions(precision=2, suppress=True)
    assert repr(x).startswith("Tensor([  3.14,   0.  , 100.  ], ")
    assert repr(x.quantize()).startswith("Tensor([")
    with np.printoptions(precision=5):  # NumPy's options apply where ours are not set
        assert repr(x).startswith("Tensor([  3.14,   0.  , 100.  ], ")
    bb.set_printoptions(threshold=5, edgeitems=1)
    assert repr(bb.arange(6, backend="numpy")) == "Tensor([0, ..., 5], shape=[6], dtype=int64, backend=numpy)"
    assert repr(bb.arange(5, backend="numpy")) == "Tensor([0, 1, 2, 3, 4], dtype=int64, backend=numpy)"
    bb.set_printoptions(linewidth=20, threshold=1000)
    assert max(map(len, repr(bb.arange(30, backend="numpy")).split("\n")[:-1])) <= 20
    bb.set_printoptions()
    assert OPTIONS == {"precision": 2, "suppress": True, "threshold": 1000, "edgeitems": 1, "linewidth": 20}


def test_numpys_print_options_apply_until_ours_are_set() -> None:
    with np.printoptions(precision=3):
        assert repr(bb.asarray([3.14159], backend="numpy")) == "Tensor([3.142], dtype=float32, backend=numpy)"


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": -1},
        {"precision": 2.5},
        {"threshold": True},
        {"edgeitems": 0},
        {"linewidth": "80"},
        {"suppress": 1},
    ],
)
def test_wrong_print_options(wrong: dict[str, Any], options: None) -> None:
    before = dict(OPTIONS)
    with pytest.raises(ArgumentError, match=f"set_printoptions: {next(iter(wrong))} is"):
        bb.set_printoptions(**wrong)
    assert before == OPTIONS


class Balanced(HTMLParser):
    """Counts elements, and asserts that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count = 0
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.count += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_tensors_in_notebooks() -> None:
    for x in (bb.ones((3, 4)), bb.zeros((2000,)), bb.zeros((0,)), bb.ones(3).quantize()):
        assert Balanced(x._repr_html_()).text == repr(x)
    assert len(bb.zeros((10_000, 100))._repr_html_()) < 1000


class Hostile(nn.Module):
    def __init__(self) -> None:
        self.name = "<script>alert(1)</script>"
        self.layer = nn.Linear(2, 3)
        self.parts = {"<b>": [nn.Linear(2, 2)]}


def test_models_in_notebooks() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2), Hostile())
    html = model._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    assert Balanced(html).text == "".join(line.strip() for line in repr(model).split("\n"))


def test_long_models_in_notebooks_are_truncated() -> None:
    html = repr_html("\n".join(["a", *(f"  {i}" for i in range(LONGEST_HTML))]))
    assert Balanced(html).text.endswith("and 1 more")
    assert Balanced(repr_html("a\n        b\n  c\n      d")).text == "abcd"
