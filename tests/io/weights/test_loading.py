"""Names, layouts, ties and the report of ``load_weights``; an error leaves the model unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import weight_files as files

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, BackburnError, DTypeError, ShapeError
from backburn.io import WeightsReport, load_weights

RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Tied(nn.Module):
    """An embedding and a head that share a weight, as in GPT-2."""

    def __init__(self) -> None:
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight


class Unchanged:
    """Asserts that a model holds the same tensors as before."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.before = {name: x.numpy() for name, x in self.model.state_dict().items()}

    def __exit__(self, *about: object) -> None:
        after = self.model.state_dict()
        assert after.keys() == self.before.keys()
        for name, x in self.before.items():
            assert np.array_equal(after[name].numpy(), x), name


# ---- names ----


def test_weights_are_matched_by_name_not_shape() -> None:
    """A square matrix is transposed only if a rename requests it."""
    x = normal(3, 3)
    for rename, expected in ((None, x), (lambda name: (name, "T"), x.T), (lambda name: (name, (1, 0)), x.T)):
        model = nn.Linear(3, 3, bias=False)
        report = load_weights(model, {"weight": x}, rename=rename)
        assert np.array_equal(model.weight.numpy(), expected)
        assert report.renamed == ({} if rename is None else {"weight": "weight"})
    with pytest.raises(ShapeError, match=r"weight has shape \[2, 3\] there and \[3, 2\] here. Nothing was loaded"):
        load_weights(nn.Linear(2, 3, bias=False), {"weight": normal(2, 3)})


def test_renames_permute_axes() -> None:
    """Kernels of Flax are (height, width, inputs, outputs)."""
    kernel = normal(5, 4, 3, 2)
    model = nn.Conv2d(3, 2, (5, 4), bias=False)
    load_weights(model, {"kernel": kernel}, rename=lambda name: ("weight", (3, 2, 0, 1)))
    assert np.array_equal(model.weight.numpy(), kernel.transpose(3, 2, 0, 1))


def test_renames_reorder_rows() -> None:
    weight, bias, rows = normal(3, 2), normal(3), np.array([2, 0, 1])
    model = nn.Linear(2, 3)
    report = load_weights(model, {"weight": weight, "bias": bias}, rename=lambda name: (name, rows))
    assert np.array_equal(model.weight.numpy(), weight[rows])
    assert model.bias is not None
    assert np.array_equal(model.bias.numpy(), bias[rows])
    assert [*report.renamed] == ["weight", "bias"]


@pytest.mark.parametrize("rows", [[0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1], [0, 1, 2, 3]])
def test_invalid_rows_are_refused(rows: list[int]) -> None:
    model = nn.Linear(2, 3, bias=False)
    with (
        Unchanged(model),
        pytest.raises(ShapeError, match=r"weight, float32\[3, 2\], has other rows than the .* rename returns"),
    ):
        load_weights(model, {"weight": normal(3, 2)}, rename=lambda name: (name, np.array(rows)))


@pytest.mark.parametrize("order", ["T", (0,), (0, 0), (0, 2), (-1, 0), (0, 1, 2)])
def test_invalid_axes_are_refused(order: Any) -> None:
    model = nn.LayerNorm(3, bias=False)
    with Unchanged(model), pytest.raises(ShapeError, match=r"weight, float32\[3\], has no order of axes|no order"):
        load_weights(
            model, {"weight": normal(3)} if order != (0,) else {"weight": normal(3, 3)}, rename=lambda n: (n, order)
        )


@pytest.mark.parametrize(
    "answer",
    [3, ("weight",), ("weight", "t"), ("weight", [1, 0]), (3, "T"), b"weight", ("a", "T", 1), ("weight", np.ones(2)),
     ("weight", np.array([[0], [1]]))],
)  # fmt: skip
def test_invalid_results_of_a_rename_are_refused(answer: Any) -> None:
    with pytest.raises(ArgumentError, match=r"rename\('weight'\) returns a path, a path with 'T', a tuple of axes"):
        load_weights(nn.Linear(2, 2, bias=False), {"weight": normal(2, 2)}, rename=lambda name: answer)


def test_a_model_declares_its_own_names() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.c_attn = nn.Linear(2, 3)

        def rename_weight(self, name: str) -> str | tuple[str, str] | None:
            path = name.removeprefix("transformer.")
            return None if path == "mask" else (path, "T") if path.endswith("weight") else path

    x, b = normal(2, 3), normal(3)
    state = {"transformer.c_attn.weight": x, "transformer.c_attn.bias": b, "transformer.mask": normal(1)}
    model = Model()
    report = load_weights(model, state)
    assert np.array_equal(model.c_attn.weight.numpy(), x.T)
    assert report.unused == ("transformer.mask",)
    with pytest.raises(ArgumentError, match=r"unused: transformer\.c_attn\.weight"):
        load_weights(model, state, rename=lambda name: name)


def test_names_that_collide_are_refused() -> None:
    model = nn.Linear(2, 2, bias=False)
    with Unchanged(model), pytest.raises(ArgumentError, match=r"a\.weight and b\.weight are both renamed to weight"):
        load_weights(model, {"a.weight": normal(2, 2), "b.weight": normal(2, 2)}, rename=lambda name: name[2:])


def test_names_that_differ_are_refused_with_advice() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    w, b = normal(2, 2), normal(2)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"0.weight": w}, r"missing: 0\.bias\. The weights are of another model\. Nothing was loaded"),
        ({"0.weight": w, "0.bias": b, "x": b}, r"unused: x\. rename= leaves out names for which it returns None"),
        (
            {"model.0.weight": w, "model.0.bias": b},
            r"Write rename=lambda name: name\.removeprefix\('model\.'\)\. Nothing",
        ),
        ({"weight": w, "bias": b}, r"Write rename=lambda name: '0\.' \+ name\. Nothing"),
        (
            {"0.weights": w, "0.bias": b},
            r"rename= gives them other names\. Did you mean '0\.weight'\?\. Nothing|Did you mean",
        ),
        ({f"x{i}": b for i in range(30)}, r"x19 and 10 more\."),
    ]
    for state, words in cases:
        with Unchanged(model), pytest.raises(ArgumentError, match=words):
            load_weights(model, state)


def test_without_strict_names_may_differ() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    w, bias = normal(2, 2), model[0].bias.numpy()
    report = load_weights(model, {"0.weight": w, "x": w}, strict=False)
    assert (report.unused, report.missing) == (("x",), ("0.bias",))
    assert np.array_equal(model[0].weight.numpy(), w)
    assert np.array_equal(model[0].bias.numpy(), bias)
    with Unchanged(model), pytest.raises(ShapeError, match=r"0\.weight has shape \[2\]"):
        load_weights(model, {"0.weight": normal(2)}, strict=False)


def test_optional_entries_are_not_missing() -> None:
    model = nn.BatchNorm1d(2)
    state = {name: normal(2) for name in ("weight", "bias", "running_mean", "running_var")}
    assert load_weights(model, state).missing == ()


# ---- ties and packs ----


@pytest.mark.parametrize("names", [("embed.weight",), ("head.weight",), ("embed.weight", "head.weight")])
def test_tied_parameters_stay_tied(names: tuple[str, ...]) -> None:
    model, x = Tied(), normal(5, 4)
    x[0, 0] = np.nan
    report = load_weights(model, dict.fromkeys(names, x))
    assert model.head.weight is model.embed.weight
    assert np.array_equal(model.head.weight.numpy(), x, equal_nan=True)
    assert tuple(report.used) == names


def test_different_values_of_a_tied_parameter_are_refused() -> None:
    model = Tied()
    with Unchanged(model), pytest.raises(ArgumentError, match=r"embed\.weight and head\.weight are one parameter here"):
        load_weights(model, {"embed.weight": normal(5, 4), "head.weight": normal(5, 4)})
    load_weights(
        model, {"embed.weight": normal(5, 4), "head.weight": normal(5, 4)}, rename={"embed.weight": "embed.weight"}.get
    )


def test_one_tensor_given_twice_is_not_tied() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.a, self.b, self.m, self.n = bb.zeros(2), bb.zeros(2), bb.asarray([0]), bb.asarray([0])

    x, i = bb.ones(2), bb.asarray([1])
    model = Model()
    load_weights(model, {"a": x, "b": x, "m": i, "n": i})
    assert model.a is not model.b
    assert model.m is not model.n
    assert model.m is not i
    load_weights(model, {"a": np.zeros(2), "b": np.ones(2), "m": i, "n": np.array([2])})
    assert (model.a.tolist(), model.b.tolist(), model.n.tolist()) == ([0, 0], [1, 1], [2])


def test_packed_weights_are_split() -> None:
    model = nn.MultiheadAttention(4, 2, bias=False)
    packed, out = normal(12, 4), normal(4, 4)
    report = load_weights(model, {"in_proj_weight": packed, "out_proj.weight": out})
    assert np.array_equal(model.k_proj.weight.numpy(), packed[4:8])
    assert report.used["v_proj.weight"] == "in_proj_weight"
    assert report.unused == ()
    load_weights(
        model,
        {"c_attn": packed.T, "out": out},
        rename=lambda n: ("in_proj_weight", "T") if n == "c_attn" else "out_proj.weight",
    )
    assert np.array_equal(model.q_proj.weight.numpy(), packed[:4])
    with (
        Unchanged(model),
        pytest.raises(ShapeError, match=r"in_proj_weight has shape \[12, 5\] there and is made of q_proj"),
    ):
        load_weights(model, {"in_proj_weight": normal(12, 5), "out_proj.weight": out})
    both = {"in_proj_weight": packed, "out_proj.weight": out, "q_proj.weight": out}
    with Unchanged(model), pytest.raises(ArgumentError, match="unused: in_proj_weight"):
        load_weights(model, both)


def test_frozen_parameters_and_modes_are_kept() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2, bias=False)).freeze().eval()
    load_weights(model, {"0.weight": normal(2, 2)})
    assert not model[0].weight.is_require_grad
    assert not model[0].training


def test_a_loaded_model_trains() -> None:
    model = nn.Linear(2, 1, bias=False)
    load_weights(model, {"weight": np.ones((1, 2), np.float16)})
    bb.optim.SGD(0.5).step(model, model(bb.ones((1, 2))).sum().backward())
    assert model.weight.tolist() == [[0.5, 0.5]]


# ---- the report ----


def test_the_report_prints_as_a_table() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1, bias=False))
    state = {"fc.weight": np.ones((1, 2), np.float16), "0.bias": np.ones(1, np.float32), "extra": np.ones(1)}
    report = load_weights(model, state, rename=lambda name: name.replace("fc", "0"), strict=False)
    assert str(report).splitlines() == [
        "model     source     dtype",
        "0.weight  fc.weight  float16 -> float32",
        "0.bias    0.bias",
        "1.weight  (missing)",
        "(unused)  extra",
        "2 used, 1 unused, 1 missing, 1 cast, 1 renamed",
    ]
    assert report == WeightsReport(
        {"0.weight": "fc.weight", "0.bias": "0.bias"},
        ("extra",),
        ("1.weight",),
        {"0.weight": ("float16", "float32")},
        {"0.weight": "fc.weight"},
    )


# ---- invalid sources, models and arrays ----


def test_other_sources_and_models_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(
        ArgumentError, match="takes a file, a folder or arrays by name, not a Linear: give its state_dict"
    ):
        load_weights(model, nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="not a list"):
        load_weights(model, [normal(2)])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="loads into a model, and not into a dict"):
        load_weights({}, {})  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        load_weights(model, tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="names of tensors are strings, not 3"):
        load_weights(model, {3: normal(2)})  # type: ignore[dict-item]
    for value in (object(), [[1], [2, 3]], "text"):
        with pytest.raises(DTypeError, match="weight"):
            load_weights(model, {"weight": value}, strict=False)


class Failing:
    """An array whose conversion to NumPy fails."""

    shape, dtype = (2,), np.dtype("float32")

    def __array__(self, *about: object, **more: object) -> np.ndarray:
        raise RuntimeError("the device is lost")


def test_an_array_that_cannot_be_read_leaves_the_model_unchanged() -> None:
    model = nn.Linear(2, 2)
    with Unchanged(model), pytest.raises(DTypeError, match="bias, a Failing, cannot become a NumPy array"):
        load_weights(model, {"weight": normal(2, 2), "bias": Failing()})


def test_mappings_of_any_kind_are_sources() -> None:
    class Lazy(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return normal(2, 2)

        def __iter__(self) -> Iterator[str]:
            return iter(["weight"])

        def __len__(self) -> int:
            return 1

    assert list(load_weights(nn.Linear(2, 2, bias=False), Lazy()).used) == ["weight"]


def test_errors_name_the_shard(tmp_path: Path) -> None:
    for i, name in enumerate(("weight", "bias")):
        content = files.safetensors_bytes({name: normal(3)})
        (tmp_path / f"model-0000{i + 1}-of-00002.safetensors").write_bytes(content)
    index = '{"weight_map": {"weight": "model-00001-of-00002.safetensors", "bias": "model-00002-of-00002.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ShapeError, match=r"weight \(in .*model-00001-of-00002\.safetensors\) has shape \[3\] there"):
        load_weights(nn.Linear(3, 3), tmp_path)


@pytest.mark.parametrize("change", [lambda m: m.freeze(), lambda m: m.astype("float64")])
def test_loading_keeps_dtype_and_frozen_parameters(change: Callable[[Any], Any]) -> None:
    model = change(nn.Linear(2, 2, bias=False))
    before = model.weight
    load_weights(model, {"weight": normal(2, 2)})
    assert (model.weight.dtype, model.weight.is_require_grad) == (before.dtype, before.is_require_grad)


def test_errors_of_loading_are_backburn_errors() -> None:
    assert issubclass(ShapeError, BackburnError)
