"""Names from other libraries raise an AttributeError with our name for them, which exists."""

from __future__ import annotations

import functools
import math
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.hints import models as of_models
from backburn.hints.arguments import RENAMED
from backburn.hints.burn import BURN, NAMES
from backburn.hints.general import (
    FUNCTIONAL,
    FUNCTIONS,
    GENERATORS,
    GRADIENTS,
    METHODS,
    MODELS,
    OPTIMIZERS,
    SET,
    TREES,
)
from backburn.hints.numpy import AT, LINES, RANDOM
from backburn.hints.numpy import FORMULAS as OF_NUMPY
from backburn.hints.torch import FORMULAS, LAYERS, ONLY_FUNCTIONS


@pytest.mark.parametrize("name", METHODS | BURN)
def test_methods_of_other_libraries_have_hints(name: str) -> None:
    """``hasattr`` is still False."""
    x = bb.ones((2, 3))
    assert not hasattr(x, name)
    with pytest.raises(AttributeError, match=rf"'FloatTensor' object has no attribute '{name}'; here: "):
        getattr(x, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_other_libraries_have_hints(name: str) -> None:
    """Namespaces have hints too."""
    with pytest.raises(AttributeError, match=rf"module 'backburn' has no attribute '{name}'; here: "):
        getattr(bb, name)


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functions_of_layers_have_hints(name: str) -> None:
    """Namespaces have hints too, for names that may exist at the top level."""
    with pytest.raises(
        AttributeError, match=rf"module 'backburn.nn.functional' has no attribute '{name}'; here: (bb|x)"
    ):
        getattr(nn.functional, name)


OF_MODELS: list[tuple[Any, dict[str, str]]] = [
    (nn, of_models.NN),
    (nn.functional, of_models.FUNCTIONAL),
    (nn.init, of_models.INIT),
    (optim, of_models.OPTIM),
    (optim.schedules, of_models.SCHEDULES),
    (bb.io, of_models.IO),
]


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in OF_MODELS for name in names])
def test_names_of_models_have_hints_in_their_module(module: Any, name: str) -> None:
    """Burn's names with its suffix ``Config`` have hints too."""
    for asked in (name, f"{name}Config"):
        with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute '{asked}'; here: "):
            getattr(module, asked)


def told(table: dict[str, str], name: str, **known: Any) -> Any:
    """Evaluate the formula of a hint, which defines names of its parts after ``with``."""
    formula, _, parts = table[name].partition(", with ")
    given = {"bb": bb, "math": math, **known}
    word, given_part, part = parts.partition(" = ")
    if given_part:
        given[word] = eval(part, given)
    return eval(formula, given)


def test_formulas_for_models_are_right() -> None:
    x, y = bb.random.normal((3, 5), dtype="float64"), bb.random.uniform((3, 5), dtype="float64")
    a, b = x.numpy(), y.numpy()
    hard = np.asarray(b > 0.5, dtype="float64")
    p = 1.0 / (1.0 + np.exp(-a))
    for table, name, given, expected in (
        (of_models.FUNCTIONAL, "clipped_relu", {"x": 30.0 * x}, np.clip(30.0 * a, 0.0, 20.0)),
        (of_models.FUNCTIONAL, "l2_loss", {"x": x, "y": y}, (a - b) ** 2 / 2),
        (of_models.FUNCTIONAL, "log1mexp", {"x": y}, np.log(1.0 - np.exp(-b))),
        (of_models.FUNCTIONAL, "log_cosh", {"x": x, "y": y}, np.log(np.cosh(a - b))),
        (of_models.FUNCTIONAL, "kl_divergence", {"x": -y, "y": y}, np.sum(b * (np.log(b) + b), axis=-1)),
        (of_models.FUNCTIONAL, "relu_squared", {"x": x}, np.maximum(a, 0.0) ** 2),
        (
            of_models.FUNCTIONAL,
            "sigmoid_focal_loss",
            {"x": x, "y": bb.asarray(hard)},
            -np.where(hard, (1.0 - p) ** 2 * np.log(p), p**2 * np.log(1.0 - p)),
        ),
        (of_models.FUNCTIONAL, "squareplus", {"x": x}, (a + np.sqrt(a**2 + 4.0)) / 2),
    ):
        np.testing.assert_allclose(told(table, name, **given).numpy(), expected, rtol=1e-6, atol=1e-7)
    noise = eval(of_models.NN["RReLU"].rpartition(", in ")[0], {"bb": bb, "x": x}).numpy() / a
    assert np.all((noise == 1.0) == (a >= 0.0))
    assert np.all((noise >= 1 / 8) & ((noise <= 1 / 3) | (noise == 1.0)))


def test_hints_for_schedules_and_initializers_are_right() -> None:
    for hint in of_models.SCHEDULES.values():
        if hint.startswith("bb."):
            assert eval(hint.partition(", or ")[0], {"bb": bb})(0) > 0.0
    joined = eval(of_models.SCHEDULES["join_schedules"].partition(": ")[2], {"first": str, "second": float})
    assert (joined(99), joined(100)) == ("99", 0.0)
    for name, deviation in (("he_normal", 0.1), ("lecun_uniform", 0.005**0.5), ("variance_scaling", 0.05)):
        made = eval(of_models.INIT[name], {"bb": bb, "shape": (300, 200), "scale": 0.5})
        assert float(made.std()) == pytest.approx(deviation, rel=0.02)
    model = nn.Linear(2, 2)
    before, gradients = model.weight, bb.trees.tree_map(lambda x: -3.0 * bb.ones_like(x), model)
    eval(of_models.OPTIM["sign_sgd"], {"bb": bb}).step(model, gradients)
    np.testing.assert_allclose((model.weight - before).numpy(), 0.001, rtol=1e-4)


@pytest.mark.parametrize("name", TREES)
def test_functions_of_trees_have_hints(name: str) -> None:
    tree = {"w": bb.ones(()), "b": 3.0}
    with pytest.raises(AttributeError, match=rf"module 'backburn.trees' has no attribute '{name}'; here: ") as caught:
        getattr(bb.trees, name)
    told = str(caught.value).partition("here: ")[2]
    if "register" not in told:
        leaves, structure = bb.trees.flatten(tree)
        known = {"bb": bb, "functools": functools, "f": lambda *x: x, "leaves": leaves, "structure": structure}
        assert eval(told, known, {"tree": tree}) is not None
    else:
        assert told.startswith("bb.trees.register_node(")


def test_formulas_for_missing_functions_are_right() -> None:
    """Formulas for functions that backburn does not have under any name."""
    functional = pytest.importorskip("torch").nn.functional
    x, y = bb.random.normal((2, 3)), bb.random.normal((2, 3))
    targets = bb.where(bb.random.bernoulli((2, 3)), 1.0, -1.0)
    theirs = {k: bb.asarray(v).numpy() for k, v in {"x": x, "y": y, "targets": targets}.items()}
    tx, ty, tt = (functional.torch.from_numpy(a) for a in theirs.values())
    n, c, r, h, w, margin = 2, 3, 2, 4, 5, 0.5
    deep, wide = bb.random.normal((n, c * r * r, h, w)), bb.random.normal((n, c, h * r, w * r))
    for name, given, expected in (
        ("margin_ranking_loss", x, functional.margin_ranking_loss(tx, ty, tt, margin=margin)),
        ("soft_margin_loss", x, functional.soft_margin_loss(tx, tt)),
        ("pairwise_distance", x, functional.pairwise_distance(tx, ty, eps=0.0)),
        ("pixel_shuffle", deep, functional.pixel_shuffle(functional.torch.from_numpy(deep.numpy()), r)),
        ("pixel_unshuffle", wide, functional.pixel_unshuffle(functional.torch.from_numpy(wide.numpy()), r)),
    ):
        names = {"bb": bb, "x": given, "y": y, "targets": targets, "margin": margin, "n": n, "c": c, "r": r}
        found = eval(FUNCTIONAL[name], names | {"h": h, "w": w})
        assert found.shape == tuple(expected.shape)
        assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-6)
    kept = eval(FUNCTIONAL["dropout2d"], {"bb": bb, "x": bb.ones((n, c, 2, 2)), "n": n, "channels": c, "p": 0.5})
    assert set(kept.sum(axis=(2, 3)).flatten().tolist()) <= {0.0, 8.0}


def test_formulas_of_functions_are_right() -> None:
    """Formulas for functions that have a name only in other libraries."""
    x, y, names = bb.random.normal((2, 3)), bb.random.normal((2, 3)), {"bb": bb}
    quiet = x.exp() / (1.0 + x.exp().sum(-1, keepdims=True))
    assert eval(FUNCTIONS["quiet_softmax"], names | {"x": x}).allclose(quiet)
    matrices = bb.random.normal((2, 4, 3))
    product = eval(FUNCTIONS["matvec"], names | {"x": matrices, "y": y})
    assert product.allclose(bb.einsum("bij,bj->bi", matrices, y), atol=1e-6)
    assert eval(FUNCTIONS["hanning"], names | {"n": 5}).numpy() == pytest.approx(np.hanning(5), abs=1e-6)
    assert eval(FUNCTIONS["argwhere"], names | {"x": x > 0}).tolist() == np.argwhere(x.numpy() > 0).tolist()
    filled = eval(BURN["one_hot_fill"], names | {"x": bb.asarray([1, 0]), "classes": 2, "on": 5.0, "off": 1.0})
    assert filled.tolist() == [[1.0, 5.0], [5.0, 1.0]]


ANGLES = np.arange(3)[:, None] / 10000 ** (np.arange(0, 4, 2) / 4)
GIVEN = np.random.default_rng(0).normal(size=(3, 4))
WHOLE = np.array([[6, 3, 0, 9], [5, 12, 7, 1], [2, 2, 8, 4]])

#: Expected results of the formulas for Burn's names, on GIVEN or the integers WHOLE, and on their reverse.
OF_BURN: dict[str, Any] = {
    "argsort_descending": np.argsort(-GIVEN, 0),
    "argtopk": np.argsort(-GIVEN, 0)[:2],
    "bitwise_and": WHOLE & WHOLE[::-1],
    "bitwise_left_shift": WHOLE << WHOLE[::-1],
    "bitwise_or_scalar": WHOLE | 1,
    "bool_xor": (GIVEN > 0) ^ (GIVEN[::-1] > 0),
    "cartesian_grid": np.stack(np.meshgrid(np.arange(3), np.arange(4), indexing="ij"), -1),
    "diag_mask": ~np.eye(3, 4, 1, dtype=bool),
    "greater_equal_scalar": GIVEN >= 1.0,
    "max_abs_dims": np.abs(GIVEN).max(keepdims=True),
    "roll_dim": np.roll(GIVEN, -1, 0),
    "sum_dims_squeeze": GIVEN.sum(),
    "tril_mask": ~np.tril(np.ones((3, 4), bool), 1),
    "triu_mask": ~np.triu(np.ones((3, 4), bool), 1),
    "LpLoss": np.mean(np.abs(GIVEN - GIVEN[::-1]) ** 3.0),
    "PositionalEncoding": GIVEN + np.stack([np.sin(ANGLES), np.cos(ANGLES)], -1).reshape(3, 4),
    "PositionWiseFeedForward": bb.gelu(bb.asarray(GIVEN)).numpy(),
    "SwiGlu": GIVEN**2 / (1 + np.exp(-GIVEN)),
    "cross_entropy_with_logits": np.mean(
        np.log(np.exp(GIVEN).sum(-1)) * GIVEN[::-1].sum(-1) - (GIVEN * GIVEN[::-1]).sum(-1)
    ),
    "l0_norm": np.full((1, 4), 3.0),
    "l1_norm": np.abs(GIVEN).sum(0, keepdims=True),
    "l2_norm": np.sqrt((GIVEN**2).sum(0, keepdims=True)),
    "lp_norm": (np.abs(GIVEN) ** 3.0).sum(0, keepdims=True) ** (1 / 3),
    "max_abs_norm": np.abs(GIVEN).max(0, keepdims=True),
    "min_abs_norm": np.abs(GIVEN).min(0, keepdims=True),
    "outer_dim": GIVEN[:, None] * GIVEN[::-1][None],
    "shrink": np.where(GIVEN > 0.5, GIVEN - 0.25, np.where(GIVEN < -0.5, GIVEN + 0.25, 0.0)),
    "vector_normalize": GIVEN / (np.abs(GIVEN) ** 3.0).sum(0, keepdims=True) ** (1 / 3),
}


@pytest.mark.parametrize("name", OF_BURN)
def test_formulas_for_names_of_burn_are_right(name: str) -> None:
    formula, _, helper = (BURN | NAMES)[name].partition(", with t = ")
    for note in (", where ", ", with two ", ", for axes "):
        formula = formula.partition(note)[0]
    host = WHOLE if name.startswith("bitwise") else GIVEN > 0 if name.startswith("bool") else GIVEN
    x, y = bb.asarray(host), bb.asarray(host[::-1])
    names: dict[str, Any] = {"bb": bb, "x": x, "y": y, "targets": y, "axis": 0, "axes": (0, 1), "k": 2, "p": 3.0}
    names |= {
        "shape": (3, 4),
        "n": 3,
        "m": 4,
        "offset": 1,
        "steps": 3,
        "size": 4,
        "limit": 0.5,
        "bias": 0.25,
        "number": 1,
    }
    names |= {"eps": 1e-12, "inner": lambda x: x, "outer": lambda x: x, "bias1": None, "bias2": None}
    names |= {"weight1": bb.eye(4), "weight2": bb.eye(4)}
    if helper:
        names["t"] = eval(helper, names)
    found = eval(formula, names)
    assert found.shape == np.shape(OF_BURN[name])
    np.testing.assert_allclose(found.numpy(), OF_BURN[name], rtol=1e-6, atol=1e-6)


def test_hints_for_schedules_of_burn_are_right() -> None:
    """Our schedules are called with the number of steps taken; Burn's count from 1."""
    names: dict[str, Any] = {"bb": bb, "size": 512, "warmup": 4000, "first": lambda n: n, "second": lambda n: n + 1}
    noam = eval(NAMES["NoamLrScheduler"], names).lr
    for step in (1, 2, 4000, 9000):
        assert noam(step - 1) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
    assert eval(NAMES["ComposedLrScheduler"], names).lr(3) == 12
    for name, hint in FUNCTIONS.items():
        if name.endswith(("LrScheduler", "ConstantLr")) and name not in ("LrScheduler", "ModuleLrScheduler"):
            assert isinstance(eval(hint, names), optim.SGD)


@pytest.mark.parametrize(
    ("module", "name", "ours"),
    [
        (nn, "LinearConfig", "bb.nn.Linear"),
        (nn, "LstmConfig", "bb.nn.LSTM"),
        (nn, "RotaryEncodingConfig", r"bb.nn.RotaryEmbedding\(\)"),
        (nn, "CrossEntropyLossConfig", r"bb.nn.functional.cross_entropy\(x, targets\)"),
        (optim, "AdaGradConfig", "bb.optim.Adagrad"),
        (optim, "NoamLrSchedulerConfig", "bb.optim.SGD.*"),
    ],
)
def test_configurations_of_burn_have_hints_for_what_they_build(module: Any, name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; here: {ours}$"):
        getattr(module, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'Config'$"):
        getattr(nn, "Config")  # noqa: B009


VECTOR, LONGER = np.array([0.0, 2.0, 2.0, -1.0]), np.array([1.0, -3.0, np.nan, 0.5])
MATRIX, SQUARE = np.array([[3.0, 1.0], [2.0, -1.0], [0.0, 4.0]]), np.array([[2.0, 1.0], [0.5, 3.0]])
STACK, EDGES = np.stack([SQUARE, SQUARE.T]), np.array([-1.0, 0.0, 2.5])

#: Operands, and torch's function of them.
OF_TORCH: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "addbmm": ((SQUARE, STACK, STACK), lambda t, *a: t.addbmm(*a)),
    "addcdiv": ((VECTOR, VECTOR, LONGER), lambda t, *a: t.addcdiv(*a, value=2.0)),
    "addcmul": ((VECTOR, VECTOR, LONGER), lambda t, *a: t.addcmul(*a, value=2.0)),
    "addmm": ((SQUARE, SQUARE, STACK[1]), lambda t, *a: t.addmm(*a)),
    "addmv": ((VECTOR[:3], MATRIX, VECTOR[:2]), lambda t, *a: t.addmv(*a)),
    "addr": ((MATRIX, VECTOR[:3], VECTOR[:2]), lambda t, *a: t.addr(*a)),
    "adjoint": ((SQUARE * (1 + 2j),), lambda t, *a: t.adjoint(*a).resolve_conj()),
    "aminmax": ((VECTOR,), lambda t, *a: t.aminmax(*a)),
    "baddbmm": ((STACK, STACK, STACK), lambda t, *a: t.baddbmm(*a)),
    "bitwise_not": ((np.array([1, -2]),), lambda t, *a: t.bitwise_not(*a)),
    "bucketize": ((VECTOR, EDGES), lambda t, *a: t.bucketize(*a)),
    "cartesian_prod": ((VECTOR, EDGES), lambda t, *a: t.cartesian_prod(*a)),
    "clamp_max": ((VECTOR,), lambda t, x: t.clamp_max(x, 1.0)),
    "clamp_min": ((VECTOR,), lambda t, x: t.clamp_min(x, 0.5)),
    "cond": ((STACK,), lambda t, *a: t.linalg.cond(*a)),
    "conj_physical": ((VECTOR * 1j,), lambda t, *a: t.conj_physical(*a)),
    "cumulative_trapezoid": ((np.cumsum(VECTOR**2), VECTOR), lambda t, x, y: t.cumulative_trapezoid(y, x)),
    "diagflat": ((SQUARE,), lambda t, *a: t.diagflat(*a)),
    "dist": ((MATRIX, MATRIX[::-1]), lambda t, *a: t.dist(*a)),
    "float_power": ((np.array([1, 2]), np.array([2, -1])), lambda t, *a: t.float_power(*a)),
    "frobenius_norm": ((MATRIX,), lambda t, *a: t.norm(*a)),
    "histc": ((np.array([0.4, 0.5, 0.9, 1.0, 2.0]),), lambda t, x: t.histc(x, 4, 0.5, 1.0)),
    "isneginf": ((np.array([np.inf, -np.inf, np.nan]),), lambda t, *a: t.isneginf(*a)),
    "isposinf": ((np.array([np.inf, -np.inf, np.nan]),), lambda t, *a: t.isposinf(*a)),
    "isreal": ((np.array([1j, 2.0, 1 - 1j]),), lambda t, *a: t.isreal(*a)),
    "logdet": ((STACK,), lambda t, *a: t.logdet(*a)),
    "lu_solve": ((SQUARE, MATRIX[:2]), lambda t, *a: t.linalg.solve(*a)),
    "msort": ((MATRIX,), lambda t, *a: t.msort(*a)),
    "nuclear_norm": ((MATRIX,), lambda t, *a: t.linalg.matrix_norm(*a, ord="nuc")),
    "pdist": ((MATRIX,), lambda t, *a: t.pdist(*a)),
    "multi_dot": ((MATRIX, SQUARE, MATRIX.T), lambda t, *a: t.linalg.multi_dot(a)),
    "psi": ((np.array([0.5, 3.0]),), lambda t, *a: t.special.psi(*a)),
    "rsub": ((VECTOR, LONGER), lambda t, *a: t.rsub(*a)),
    "t": ((MATRIX,), lambda t, *a: t.t(*a)),
    "trapz": ((np.cumsum(VECTOR**2), VECTOR), lambda t, x, y: t.trapz(y, x)),
    "tril_indices": ((), lambda t: t.tril_indices(3, 4)),
    "triu_indices": ((), lambda t: t.triu_indices(3, 4)),
    "unique_consecutive": ((VECTOR,), lambda t, *a: t.unique_consecutive(*a)),
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_formulas_for_functions_of_torch_are_right(name: str) -> None:
    torch = pytest.importorskip("torch")
    arrays, call = OF_TORCH[name]
    names: dict[str, Any] = {"bb": bb, "value": 2.0, "low": 0.5, "high": 1.0, "bins": 4, "q": 0.25, "n": 3, "m": 4}
    names |= {key: bb.asarray(array) for key, array in zip("xyz", arrays, strict=False)}
    formula, _, helper = FORMULAS[name].partition(", with ")
    if helper:
        key, _, value = helper.partition(" = ")
        names[key] = eval(value, names)
    found, expected = eval(formula, names), call(torch, *(torch.from_numpy(array.copy()) for array in arrays))
    for ours, theirs in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)


GAPS, ENDS = np.array([np.nan, 2.0, np.nan, -1.0, 2.0]), np.array([np.nan, np.inf, -np.inf, 1.5])
CUBE, ROWS = np.arange(16.0).reshape(2, 2, 4), np.array([[1, 0]])


def changed(function: Callable[..., Any], x: Any, *arguments: Any) -> Any:
    """Return ``x`` after a NumPy function has changed it in place."""
    function(x, *arguments)
    return x


#: Operands for functions of NumPy, SciPy and JAX, and the call if it is not ``np.<name>(*operands)``.
OTHERS: dict[str, tuple[tuple[Any, ...], Callable[..., Any] | None]] = {
    "arccosh": ((np.array([1.0, 2.5]),), None),
    "arctanh": ((np.array([0.5, -0.25]),), None),
    "argpartition": ((VECTOR,), np.argsort),
    "array_equal": ((VECTOR, VECTOR), None),
    "choose": ((np.array([1, 0, 1]),), lambda x: np.choose(x, [np.ones(3), np.zeros(3)])),
    "compress": ((np.array([True, False, True, True]), LONGER), None),
    "delete": ((VECTOR,), lambda x: np.delete(x, 1)),
    "diag_indices": ((), lambda: np.diag_indices(2)),
    "digitize": ((np.array([-2.0, -1.0, 0.0, 1.0, 2.5, 3.0]), EDGES), None),
    "dsplit": ((CUBE,), lambda x: np.dsplit(x, 2)),
    "expit": ((VECTOR,), lambda x: 1 / (1 + np.exp(-x))),
    "extract": ((np.array([True, False, True, True]), LONGER), None),
    "fill_diagonal": ((MATRIX,), lambda x: changed(np.fill_diagonal, x, 2.0)),
    "gammaln": ((np.array([1.0, 4.0]),), lambda x: np.log([1.0, 6.0])),
    "geomspace": ((), lambda: np.geomspace(0.5, 4.0, 5)),
    "histogram_bin_edges": ((VECTOR,), lambda x: np.histogram_bin_edges(x, 2)),
    "hsplit": ((CUBE,), lambda x: np.hsplit(x, 2)),
    "hstack": ((MATRIX, MATRIX), lambda *a: np.hstack(a)),
    "identity": ((), lambda: np.identity(2)),
    "in1d": ((VECTOR, EDGES), np.isin),
    "indices": ((), lambda: np.indices((2, 3))),
    "insert": ((VECTOR, EDGES), lambda x, y: np.insert(x, 1, y)),
    "intersect1d": ((VECTOR, EDGES), None),
    "invert": ((np.array([1, -2]),), None),
    "iscomplex": ((np.array([1j, 2.0, 1 - 1j]),), None),
    "ix_": ((MATRIX,), lambda x: x[np.ix_([2, 0], [1])]),
    "left_shift": ((np.array([1, -2]), np.array([3, 1])), None),
    "lexsort": ((np.array([2, 1, 0, 3]), VECTOR), lambda *a: np.lexsort(a)),
    "nan_to_num": ((ENDS,), None),
    "nanpercentile": ((GAPS,), lambda x: np.nanpercentile(x, 30.0)),
    "partition": ((VECTOR,), np.sort),
    "polyfit": ((LONGER[[0, 1, 3]], VECTOR[:3]), lambda x, y: np.polyfit(x, y, 2)),
    "polyval": ((EDGES, MATRIX), None),
    "put_along_axis": ((MATRIX, 9.0 * ROWS), lambda x, y: changed(np.put_along_axis, x, ROWS, y, 0)),
    "putmask": ((VECTOR, -VECTOR), lambda x, y: changed(np.putmask, x, x > 0, y)),
    "ravel_multi_index": ((np.array([0, 1]), np.array([2, 1])), lambda x, y: np.ravel_multi_index((x, y), (2, 3))),
    "right_shift": ((np.array([8, -8]), np.array([3, 1])), None),
    "rollaxis": ((CUBE,), lambda x: np.rollaxis(x, 2)),
    "segment_sum": ((MATRIX,), lambda x: np.stack([x[1], x[0] + x[2]])),
    "setdiff1d": ((VECTOR, EDGES), None),
    "setxor1d": ((VECTOR, EDGES), None),
    "union1d": ((VECTOR, EDGES), None),
    "unravel_index": ((np.array([5, 1]),), lambda x: np.unravel_index(x, (2, 3))),
    "row_stack": ((MATRIX, MATRIX), lambda *a: np.vstack(a)),
    "vecmat": ((VECTOR[:3], MATRIX), None),
    "vsplit": ((CUBE,), lambda x: np.vsplit(x, 2)),
    "vstack": ((MATRIX, MATRIX), lambda *a: np.vstack(a)),
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_formulas_for_functions_of_numpy_are_right(name: str) -> None:
    arrays, call = OTHERS.get(name, ((GAPS if name.startswith("nan") else VECTOR,), None))
    names: dict[str, Any] = {"bb": bb, "value": 2.0, "q": 0.25, "percent": 30.0, "axis": 0, "n": 2, "m": 3, "i": 1}
    names |= {"indices": bb.asarray(ROWS), "ids": bb.asarray([1, 0, 1]), "low": 0.5, "high": 4.0, "num": 5}
    names |= {"rows": bb.asarray([2, 0]), "columns": bb.asarray([1]), "choices": [bb.ones(3), bb.zeros(3)]}
    names |= {"mask": bb.asarray(VECTOR > 0)}
    names |= {key: bb.asarray(array) for key, array in zip("xy", arrays, strict=False)}
    given = [array.copy() for array in arrays]
    expected = call(*given) if call else getattr(np, name)(*given)
    formula, _, helper = re.split(", which| of matrices", OF_NUMPY[name])[0].partition(", with i = ")
    found = eval(formula, names | ({"i": eval(helper, names)} if helper else {}))
    for ours, theirs in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-6)
        assert np.shape(ours) == np.shape(theirs)


def test_lines_for_random_numbers_run() -> None:
    names = {"bb": bb, "shape": (2, 3), "x": bb.ones(3), "n": 4, "mean": bb.zeros(2), "cov": bb.eye(2)}
    for name, shape in (
        ("exponential", (2, 3)),
        ("gumbel", (2, 3)),
        ("shuffle", (3,)),
        ("multivariate_normal", (4, 2)),
    ):
        assert eval(LINES[name], names).shape == shape


def test_hints_of_random_are_right() -> None:
    known = {"bb": bb, "math": math, "seed": 0, "n": 5, "p": 0.25, "a": 2.0, "shape": (20_000,)}
    means = {"binomial": 1.25, "geometric": 4.0, "laplace": 1.0, "rademacher": 1.0}
    means |= {"rayleigh": math.sqrt(math.pi / 2.0), "weibull": math.sqrt(math.pi) / 2.0}
    for name, hint in RANDOM.items():
        with pytest.raises(AttributeError, match=rf"'backburn.random' .* '{name}'; here: {re.escape(hint)}"):
            getattr(bb.random, name)
        with bb.random.fork(0):
            found = eval(hint, known)
        if name in means:
            assert float(bb.abs(found).astype("float32").mean()) == pytest.approx(means[name], rel=0.03)
    for name in ("laplace", "rademacher"):
        assert abs(float(eval(RANDOM[name], known).mean())) < 0.05
    assert float(bb.median(bb.abs(eval(RANDOM["cauchy"], known)))) == pytest.approx(1.0, rel=0.05)
    assert len(eval(RANDOM["split"], known)) == 5


def test_defvjp_of_jax_has_a_hint() -> None:
    f: Any = bb.custom_vjp(bb.sin)
    with pytest.raises(AttributeError, match=r"'defvjp'; here: define\(forward, backward\)$"):
        f.defvjp(None, None)


@pytest.mark.parametrize("name", AT)
def test_methods_of_jax_at_have_hints(name: str) -> None:
    numpy = pytest.importorskip("jax").numpy
    values, index = [1.0, 3.0, -2.0], [2, 0]
    x = bb.asarray(values)
    at: Any = x.at[index]
    with pytest.raises(AttributeError, match=rf"'AtIndex' object has no attribute '{name}'; here: x"):
        getattr(at, name)
    found = eval(AT[name], {"x": x, "index": index, "value": 2.0, "f": lambda y: y * y})
    theirs = getattr(numpy.asarray(values).at[numpy.asarray(index)], name)
    expected = theirs(*{"apply": (lambda y: y * y,), "get": ()}.get(name, (2.0,)))
    assert found.tolist() == expected.tolist()


def test_formulas_for_layers_of_torch_are_right() -> None:
    functional = pytest.importorskip("torch").nn.functional
    n, c, h, w, groups = 2, 6, 3, 2, 3
    images = bb.random.normal((n, c, h, w))
    theirs = functional.torch.from_numpy(images.numpy())
    ours = {"bb": bb, "n": n, "c": c, "h": h, "w": w, "groups": groups, "size": (5, 4)}
    for name, given, expected in (
        ("channel_shuffle", {"x": images}, functional.channel_shuffle(theirs, groups)),
        ("upsample_bilinear", {"x": images}, functional.interpolate(theirs, (5, 4), None, "bilinear", True)),
        ("upsample_nearest", {"x": images}, functional.interpolate(theirs, (5, 4))),
    ):
        np.testing.assert_allclose(eval(LAYERS[name], ours | given).numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ONLY_FUNCTIONS)
def test_functions_that_are_methods_elsewhere(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"'FloatTensor' object has no attribute '{name}'; here: (bb|x)"):
        getattr(bb.ones((2, 2)), name)
    x = bb.asarray([[1.0, 0.5], [0.5, 1.0]])
    if ONLY_FUNCTIONS[name].endswith(("(x)", "(x, y)")) and name != "bincount":
        eval(ONLY_FUNCTIONS[name], {"bb": bb, "x": x, "y": x})


def test_methods_of_models_optimizers_and_generators() -> None:
    """Methods have hints too."""
    owners = nn.Linear(1, 1), optim.SGD(0.1), bb.random.Generator(0), bb.ones(()).require_grad().backward()
    for owner, names in zip(owners, (MODELS, OPTIMIZERS, GENERATORS, GRADIENTS), strict=True):
        for name in names:
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'; here: "):
                getattr(owner, name)
    for name, expected in (("in_features", 3), ("out_features", 2)):
        assert eval(MODELS[name].removesuffix(" of a Linear"), {"layer": nn.Linear(3, 2)}) == expected


@pytest.mark.parametrize("name", ["tiny", "smallest_subnormal"])
@pytest.mark.parametrize("dtype", [bb.float16, bb.float32, bb.float64])
def test_limits_of_floats_that_numpy_has(name: str, dtype: bb.DType) -> None:
    limits: Any = bb.finfo(dtype)
    with pytest.raises(AttributeError, match=f"'FloatInfo' object has no attribute '{name}'; here: ") as caught:
        getattr(limits, name)
    found = eval(str(caught.value).partition("here: ")[2], vars(limits))
    assert found == getattr(np.finfo(dtype.name), name)


def test_namespaces_have_hints_too() -> None:
    """Users look for names in namespaces first."""
    places = [(bb.nn, "CrossEntropyLoss"), (bb.random, "randn"), (bb.linalg, "norm"), (bb.data, "DataLoader")]
    places += [(bb.fft, "rfft2"), (optim.schedules, "MultiStepLR")]
    for module, name in places:
        with pytest.raises(AttributeError, match="; here: bb"):
            getattr(module, name)
    for module, name, ours in (
        (bb, "svd", "bb.linalg.svd"),
        (bb, "layer_norm", "bb.nn.functional.layer_norm"),
        (bb, "hann_window", "bb.fourier.hann_window"),
        (bb, "Linear", "bb.nn.Linear"),
        (nn, "MultiHeadAttention", "bb.nn.MultiheadAttention"),
        (nn, "HuberLoss", "bb.nn.functional.huber_loss"),
        (nn.functional, "relu_", "bb.nn.functional.relu"),
        (nn, "Relu", "bb.nn.ReLU"),
        (nn, "LinearConfig", "bb.nn.Linear"),
        (nn.functional, "hardswish", "bb.nn.functional.hard_swish"),
        (nn.init, "kaiming_normal_", "bb.nn.init.kaiming_normal"),
    ):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; here: {ours}$"):
            getattr(module, name)
    with pytest.raises(AttributeError, match="; here: lr may be a function"):
        getattr(optim, "lr_scheduler")  # noqa: B009
    with pytest.raises(AttributeError, match=r"'add_'; here: tensors are never changed"):
        getattr(bb.ones(2), "add" + "_")
    with pytest.raises(AttributeError, match=r"'foo'$"):
        getattr(bb.ones(2), "fo" + "o")


@pytest.mark.parametrize(
    ("name", "ours"), [("cross_entropy", "bb.nn.functional.cross_entropy"), ("Adam", "bb.optim.Adam")]
)
def test_names_of_modules_that_are_not_loaded_have_hints(name: str, ours: str) -> None:
    program = f"import backburn; backburn.{name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert f"module 'backburn' has no attribute '{name}'; here: {ours}" in done.stderr


@pytest.mark.parametrize("name", SET)
def test_attributes_that_other_libraries_set_have_hints(name: str) -> None:
    x = bb.ones(2)
    assert not hasattr(x, name)
    with pytest.raises(AttributeError, match=rf"'FloatTensor' object has no attribute '{name}'; here: x\."):
        getattr(x, name)
    with pytest.raises(AttributeError, match=f"'{name}' of a FloatTensor cannot be set: .* never changed; here"):
        setattr(x, name, False)


def test_errors_name_the_library_of_foreign_tensors() -> None:
    theirs = pytest.importorskip("torch").ones(2, 3)
    with pytest.raises(bb.errors.DTypeError, match=r"Linear: takes a tensor, not torch\.Tensor\. bb\.asarray"):
        nn.Linear(3, 2)(theirs)
    with pytest.raises(bb.errors.DTypeError, match=r"add: takes tensors and Python numbers, not torch\.Tensor; bb"):
        bb.ones((2, 3)) + theirs


def test_calls_as_in_other_libraries_have_hints() -> None:
    tensor: Any = bb.tensor
    with pytest.raises(TypeError, match=r"bb\.asarray\(data\) makes a tensor"):
        tensor([1.0])
    for kind in (bb.Tensor, bb.FloatTensor):
        with pytest.raises(TypeError, match=rf"{kind.__name__} is for isinstance; bb\.asarray\(data\) makes a tensor"):
            kind([1.0])
    with pytest.raises(bb.errors.SpecError, match=r"to: float64 is neither a backend .*; astype\('float64'\) casts"):
        bb.ones(2).to(bb.float64)  # type: ignore[arg-type]
    with pytest.raises(bb.errors.SpecError, match=r"'float64'. That is a dtype: astype\('float64'\) casts"):
        bb.ones(2).to("float64")
    with pytest.raises(bb.errors.ArgumentError, match=r"Sequential: holds modules, not a list; write Sequential"):
        nn.Sequential([nn.ReLU()])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"repeat\(\) takes .*; the whole tensor .* is bb\.tile\(x, \(2, 1, 1\)\)"):
        bb.ones((2, 3)).repeat(2, 1, 1)  # type: ignore[call-arg]
    head, embed = nn.Linear(3, 5, bias=False), nn.Embedding(5, 3)
    head.weight = embed.weight
    assert head(bb.ones((1, 3))).shape == (1, 5)
    with pytest.raises(bb.errors.ShapeError, match=r"the weight 5; the weight is \(outputs, inputs\): transpose it"):
        nn.functional.linear(bb.ones((1, 3)), head.weight.T)
    polygamma: Any = bb.polygamma
    with pytest.raises(bb.errors.DTypeError, match=r"polygamma: the tensor comes first, .*: bb.polygamma\(x, 1\)"):
        polygamma(1, bb.ones(2))
    with pytest.raises(AttributeError, match=r"'clamp_'; here: x\.clip"):
        getattr(bb.ones(2), "clamp" + "_")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("int", r"Did you mean 'int64'\?"),
        ("double", r"Did you mean 'float64'\?"),
        ("half", r"Did you mean 'float16'\?"),
        ("torch.float32", r"Did you mean 'float32'\?"),
        ("complex256", "The complex dtypes are complex64 and complex128"),
    ],
)
def test_names_of_dtypes_of_other_libraries_have_hints(name: str, hint: str) -> None:
    with pytest.raises(bb.errors.DTypeError, match=f"{name} is not a dtype of backburn. {hint}"):
        bb.zeros(1, dtype=name)


class Named(nn.Module):
    """A module with names that have hints: a method, and an attribute of the instance."""

    def __init__(self) -> None:
        self.children = [nn.Linear(1, 1)]

    def double(self) -> int:
        return 2


@pytest.mark.parametrize("owner", [bb.ones((2, 3)), nn.Linear(1, 1), optim.SGD(0.1), Named()])
def test_names_with_hints_are_not_listed(owner: Any) -> None:
    """Completion offers only names that exist."""
    listed = dir(owner)
    assert not {"zero_grad", "sum_", "shape_", "half", "cuda"} & set(listed)
    for name in listed:
        getattr(owner, name)
    assert [name for name in ("children", "double", "training") if name in listed] == (
        ["children", "double", "training"] if isinstance(owner, Named) else ["training"] * isinstance(owner, nn.Module)
    )


@pytest.mark.parametrize(
    "module", [nn, nn.functional, nn.init, optim, bb.random, bb.linalg, bb.fft, bb.fourier, bb.data]
)
def test_modules_list_public_names(module: Any) -> None:
    """Public names, without the helpers in the same file."""
    assert dir(module) == sorted(module.__all__)


class Mine(nn.Conv2d):
    """A subclass that forwards its arguments, and makes a mistake."""

    def __init__(self, **options: Any) -> None:
        super().__init__(1, 2, **options)
        len(1)  # type: ignore[arg-type]


A: Any = nn
S: Any = optim.schedules
CALLS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: nn.Linear(inputs=3, outputs=4),  # type: ignore[call-arg]
        "Linear() got an unexpected keyword argument 'inputs'; here: in_features; it takes Linear(in_features,",
    ),
    (
        lambda: nn.Conv2d(1, 2, size=3),  # type: ignore[call-arg]
        "'size'; here: kernel_size; it takes Conv2d(in_channels, out_channels, kernel_size, stride=1, padding=0, ",
    ),
    (
        lambda: nn.Linear(3),  # type: ignore[call-arg]
        "Linear() missing 1 required positional argument: 'out_features'; it takes Linear(in_features, out_features,",
    ),
    (lambda: nn.Linear(d_input=3, d_output=4), "'d_input'; here: in_features; it takes"),  # type: ignore[call-arg]
    (lambda: nn.Dropout(prob=0.5), "'prob'; here: p; it takes Dropout(p"),  # type: ignore[call-arg]
    (lambda: optim.Adam(0.1, epsilon=1e-5), "'epsilon'; here: eps; it takes Adam(lr"),  # type: ignore[call-arg]
    (lambda: nn.MultiheadAttention(8, n_heads=2), "'n_heads'; here: num_heads; it takes"),  # type: ignore[call-arg]
    (
        lambda: nn.ReLU(inplace=True),  # type: ignore[call-arg]
        "ReLU() got an unexpected keyword argument 'inplace'; here: nothing, tensors are never changed; it takes ReLU",
    ),
    (
        lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True),  # type: ignore[call-arg]
        "'batch_first'; here: nothing, the batch axis is first; it takes TransformerEncoderLayer(d_model, nhead,",
    ),
    (lambda: nn.Dropout(0.1, True), "Dropout() takes "),  # type: ignore[call-arg]
    (
        lambda: nn.Linear(3, 4, dtype="float64"),  # type: ignore[call-arg]
        "'dtype'; here: with bb.use_dtype('float64'): around it, or model.astype('float64'); it takes Linear(",
    ),
    (
        lambda: nn.LSTM(3, 4, device="cpu"),  # type: ignore[call-arg]
        "'device'; here: with bb.use_backend(backend): around it, or model.to(backend); it takes LSTM(",
    ),
    (lambda: optim.SGD(0.1, decay=0.1), "it takes SGD(lr=0.001, momentum=0.0, *, weight_decay=0.0, nesterov=False)"),  # type: ignore[call-arg]
    (
        lambda: optim.schedules.Cosine(0.1, steps=10),  # type: ignore[call-arg]
        "Cosine() got an unexpected keyword argument 'steps'; here: T_max; it takes Cosine(lr, T_max, eta_min=0.0)",
    ),
    (lambda: Mine(size=3), "Conv2d() got an unexpected keyword argument 'size'"),
    (lambda: Mine(kernel_size=3), "object of type 'int' has no len()"),
]


#: Calls with former names of arguments, and the present names.
OLD: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: A.Conv2d(inputs=1), "inputs", "in_channels"),
    (lambda: A.Conv1d(1, outputs=2), "outputs", "out_channels"),
    (lambda: A.MaxPool2d(size=2), "size", "kernel_size"),
    (lambda: A.AdaptiveAvgPool1d(size=2), "size", "output_size"),
    (lambda: A.LPPool1d(ord=2), "ord", "norm_type"),
    (lambda: A.Upsample(scale=2), "scale", "scale_factor"),
    (lambda: A.Embedding(count=2), "count", "num_embeddings"),
    (lambda: A.Embedding(2, size=2), "size", "embedding_dim"),
    (lambda: A.LayerNorm(shape=2), "shape", "normalized_shape"),
    (lambda: A.LayerNorm(2, weight=False), "weight", "elementwise_affine"),
    (lambda: A.BatchNorm(channels=2), "channels", "num_features"),
    (lambda: A.GroupNorm(groups=2), "groups", "num_groups"),
    (lambda: A.GroupNorm(2, channels=2), "channels", "num_channels"),
    (lambda: A.PReLU(channels=2), "channels", "num_parameters"),
    (lambda: A.PReLU(slope=0.1), "slope", "init"),
    (lambda: A.LeakyReLU(slope=0.1), "slope", "negative_slope"),
    (lambda: A.Hardtanh(low=0.1), "low", "min_val"),
    (lambda: A.Hardtanh(high=0.1), "high", "max_val"),
    (lambda: A.Softshrink(threshold=1.0), "threshold", "lambd"),
    (lambda: A.Flatten(start=1), "start", "start_axis"),
    (lambda: A.Unflatten(1, shape=(2, 3)), "shape", "unflattened_size"),
    (lambda: A.MultiheadAttention(size=4), "size", "embed_dim"),
    (lambda: A.MultiheadAttention(4, heads=4), "heads", "num_heads"),
    (lambda: A.MultiheadAttention(4, 4, kv_heads=2), "kv_heads", "num_kv_heads"),
    (lambda: A.TransformerEncoderLayer(size=4), "size", "d_model"),
    (lambda: A.TransformerEncoderLayer(4, heads=2), "heads", "nhead"),
    (lambda: A.TransformerEncoderLayer(4, 2, hidden=2), "hidden", "dim_feedforward"),
    (lambda: A.TransformerEncoderLayer(4, 2, pre_norm=True), "pre_norm", "norm_first"),
    (lambda: A.TransformerEncoderLayer(4, 2, eps=1e-5), "eps", "layer_norm_eps"),
    (lambda: optim.LBFGS(history=5), "history", "history_size"),  # type: ignore[call-arg]
    (lambda: optim.Adagrad(initial=0.5), "initial", "initial_accumulator_value"),  # type: ignore[call-arg]
    (lambda: S.Cosine(rate=0.1), "rate", "lr"),
    (lambda: S.Cosine(0.1, 10, end=0.1), "end", "eta_min"),
    (lambda: S.CosineWarmRestarts(0.1, 10, growth=2), "growth", "T_mult"),
    (lambda: S.Polynomial(0.1, steps=10), "steps", "total_iters"),
    (lambda: S.Linear(start=0.1), "start", "init_value"),
    (lambda: S.Step(0.1, every=10), "every", "step_size"),
    (lambda: S.Exponential(0.1, factor=0.9), "factor", "gamma"),
    (lambda: S.MultiStep(0.1, at=(3,)), "at", "milestones"),
    (lambda: S.OneCycle(0.1, 10, share=0.3), "share", "pct_start"),
    (lambda: S.OneCycle(0.1, 10, rise=5.0), "rise", "div_factor"),
    (lambda: S.OneCycle(0.1, 10, fall=5.0), "fall", "final_div_factor"),
    (lambda: S.ReduceOnPlateau(0.1, end=0.1), "end", "min_lr"),
    (lambda: X.flatten(start=1), "start", "start_axis"),
    (lambda: nn.functional.normalize(X, ord=1.0), "ord", "p"),  # type: ignore[call-arg]
]  # fmt: skip


@pytest.mark.parametrize(("call", "old", "new"), OLD)
def test_former_names_of_arguments_have_hints(call: Callable[[], Any], old: str, new: str) -> None:
    with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{old}'; here: {new};"):
        call()


X: Any = bb.ones((2, 3)).require_grad()
F: Any = nn.functional
B: Any = bb
FOREIGN: list[tuple[Callable[[], Any], str]] = [
    (lambda: X.sum(dim=0), "'dim'; here: axis; it takes sum(x, /, axis=None, *, dtype=None, keepdims=False)"),
    (lambda: B.mean(X, 0, keepdim=True), "mean() got an unexpected keyword argument 'keepdim'; here: keepdims;"),
    (lambda: X.std(ddof=1), "'ddof'; here: correction; it takes std("),
    (lambda: X.reshape(-1, order="F"), "reshape() got an unexpected keyword argument 'order'; here: there is one"),
    (lambda: B.linalg.lstsq(X, X, rcond=None), "lstsq() got an unexpected keyword argument 'rcond'; here: rtol;"),
    (lambda: B.linalg.pinv(X, 1e-3), "pinv() takes 1 positional argument at most, and not 0.001 besides; it"),
    (lambda: B.linalg.svd(X, compute_uv=False), "'compute_uv'; here: bb.linalg.svdvals(x)"),
    (lambda: B.tensordot(X, X, 1), "tensordot() takes 2 positional arguments at most, and not 1 besides; it takes"),
    (lambda: B.pad(X, 1, constant_values=3), "'constant_values'; here: value; it takes pad("),
    (lambda: B.pad(X, (1, 1), "edge"), "pad() takes 2 positional arguments at most, and not 'edge' besides"),
    (lambda: X.var(unbiased=True), "here: correction=1 divides by n - 1, correction=0 by n;"),
    (lambda: X.sum(0, True), "sum() takes 2 positional arguments at most, and not True besides; it takes sum("),
    (lambda: X.mean(colour=1), "mean() got an unexpected keyword argument 'colour'; it takes mean("),
    (lambda: F.softmax(X, dim=1), "softmax() got an unexpected keyword argument 'dim'; here: axis;"),
    (lambda: F.scaled_dot_product_attention(X, X, X, causal=True), "'causal'; here: is_causal;"),
    (lambda: B.zeros(2, 3), "argument at most, and not 3 besides; a shape is one argument: zeros((2, 3)); it takes"),
    (lambda: X.permute_dims(1, 0), "several axes are one argument: permute_dims((1, 0))"),
    (lambda: nn.Softmax(dim=1), "'dim'; here: axis; it takes Softmax(axis=-1)"),  # type: ignore[call-arg]
    (lambda: nn.LSTM(3, 4, layers=2), "'layers'; here: num_layers; it takes LSTM("),  # type: ignore[call-arg]
    (lambda: nn.GRU(3, size=4), "'size'; here: hidden_size; it takes GRU("),  # type: ignore[call-arg]
    (lambda: nn.Bilinear(first=3), "'first'; here: in1_features; it takes Bilinear("),  # type: ignore[call-arg]
    (lambda: nn.Upsample(scale=2), "'scale'; here: scale_factor; it takes Upsample("),  # type: ignore[call-arg]
    (lambda: F.interpolate(X, scale=2), "'scale'; here: scale_factor; it takes interpolate(x, size=None, scale_f"),
    (lambda: B.random.normal(3, 4), "a shape is one argument: normal((2, 3))"),
    (lambda: B.random.normal(size=3), "'size'; here: shape; it takes normal(shape=(), *, mean=0.0, std=1.0,"),
    (lambda: B.random.normal(key=0), "'key'; here: generator=bb.random.Generator(seed); it takes normal("),
    (lambda: optim.LBFGS(max_iter=20), "'max_iter'; here: optimizer.step(model, loss, steps=20); it takes LBFGS("),  # type: ignore[call-arg]
    (lambda: B.asarray([1.0], requires_grad=True), "'requires_grad'; here: asarray(...).require_grad(); it takes"),
    (lambda: B.histogram(X, 10), "takes 1 positional argument at most, and not 10 besides; it"),
    (lambda: B.vmap(B.exp, in_dims=0), "'in_dims'; here: in_axes; it takes vmap("),
    (lambda: X.sum().backward(create_graph=True), "'create_graph'; here: bb.grad(bb.grad(f)) is"),
    (lambda: optim.SGD(0.1).step(), "step() missing 2 required"),  # type: ignore[call-arg]
    (lambda: optim.SGD(0.1).step(), "here: optimizer.step(model, gradients), with gradients = loss.backward();"),  # type: ignore[call-arg]
    (lambda: X.sum().backward(gradient=X), "'gradient'; here: cotangent; it takes backward(cotangent=None, *, retain"),
    (lambda: B.checkpoint(B.exp, X), "the function is the only argument: checkpoint(f)(x); it takes checkpoint(f)"),
    (lambda: X.quantize("int8"), "not 'int8' besides; it takes quantize(x, /, *, dtype=qint8"),
    (lambda: np.mean(X), "for np.mean(x) of a tensor write bb.mean(x);"),
    (lambda: np.sum(X, axis=0), "for np.sum(x) of a tensor write bb.sum(x);"),
]


@pytest.mark.parametrize("word", RENAMED)
def test_arguments_in_hints_exist(word: str) -> None:
    """Each is a parameter of a function that does not take the other name."""
    places: Any = (bb, nn, F, nn.init, optim, S, bb.random, bb.linalg, bb.fft, bb.fourier, bb.data)
    values = [getattr(place, name) for place in places for name in place.__all__] + [bb.FloatTensor.backward]
    taken = [set(signature(value).parameters) for value in values if callable(value)]
    for ours in RENAMED[word]:
        assert any(ours in names and word not in names for names in taken), ours


@pytest.mark.parametrize(("call", "words"), [*CALLS, *FOREIGN])
def test_wrong_arguments_have_hints(call: Callable[[], Any], words: str) -> None:
    """Errors name the class that was called, also if it inherits its initializer."""
    with pytest.raises(TypeError, match=re.escape(words)):
        call()


def test_a_layer_without_options_passes_arguments_to_the_next_class() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    class Mine(nn.ReLU, Named):
        pass

    assert Mine("first").name == "first"
    assert signature(nn.ReLU).parameters == {}


def test_signatures_are_kept() -> None:
    """Help and completion still see the signatures."""
    assert list(signature(nn.Conv2d).parameters)[:3] == ["in_channels", "out_channels", "kernel_size"]
    assert list(signature(optim.Adam).parameters) == ["lr", "betas", "eps", "weight_decay", "amsgrad"]
    with pytest.raises(bb.errors.ArgumentError, match=r"^Conv2d: in_channels is an integer"):
        nn.Conv2d(0, 1, 2)


TABLES = METHODS, BURN, FUNCTIONAL, FUNCTIONS, GENERATORS, GRADIENTS, MODELS, OPTIMIZERS, SET, RANDOM, AT
HINTS = {hint for names in (*TABLES, *(table for _, table in OF_MODELS)) for hint in names.values()}


@pytest.mark.parametrize("hint", sorted(HINTS))
def test_names_in_hints_exist(hint: str) -> None:
    """Every name of ours in a hint exists."""
    for path in re.findall(r"\bbb\.([\w.]+)", hint):
        found: object = bb
        for part in path.split("."):
            found = getattr(found, part)
    for name in re.findall(r"\bmodel\.(\w+)", hint):
        assert hasattr(nn.Linear(1, 1), name)
    for name in re.findall(r"\bgenerator\.(\w+)", hint):
        assert hasattr(bb.random.Generator(0), name)
    for name in re.findall(r"\bx\.(\w+)", hint):
        assert hasattr(bb.ones((2, 3)), name)


def test_classes_list_existing_names() -> None:
    """Completion and ``help`` use ``dir``."""
    listed = dir(bb.FloatTensor)
    assert not {"sum_", "cuda", "requires_grad"} & set(listed)
    assert {"sum", "shape", "primitive", "_primitive", "__add__"} <= set(listed)
    assert all(hasattr(bb.FloatTensor, name) for name in listed if name != "__abstractmethods__")
    text = pydoc.render_doc(bb.Tensor)
    assert "matmul(" in text
    assert "numel" not in text


def test_signatures_omit_parameters_for_refused_arguments() -> None:
    """Help, completion and libraries read the signatures."""
    for function in (bb.sum, bb.Tensor.sum, bb.asarray, bb.vmap, bb.Tensor.backward):
        assert {"surplus", "wrong"}.isdisjoint(signature(function).parameters)
    assert str(signature(nn.functional.softmax)) == "(x: 'Tensor', /, axis: 'int' = -1) -> 'FloatTensor'"
