"""Adapters: merging, DoRA, files, their base, PEFT in both directions, and bad files."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, BackburnError, FileFormatError, ShapeError
from backburn.base.metadata import MetadataWarning
from backburn.io import load_adapters, save_adapters
from backburn.io.adapters import CONFIG, TENSORS
from backburn.nn.functional import mse_loss
from backburn.optim import SGD

INT4 = "qint4_symmetric_block4_float32"
KINDS: list[dict[str, Any]] = [
    {},
    {"alpha": 16.0},
    {"alpha": 3.0, "use_rslora": True},
    {"use_dora": True},
    {"alpha": 2.5, "use_dora": True, "use_rslora": True},
]


class Net(nn.Module):
    """A model with nested linear layers, one of them without a bias."""

    def __init__(self, seed: int = 1) -> None:
        bb.random.seed(seed)
        self.first = nn.Linear(8, 12)
        self.layers = [nn.Linear(12, 12), nn.Linear(12, 4, bias=False)]

    def forward(self, x: Any) -> Any:
        for layer in (self.first, *self.layers):
            x = bb.tanh(layer(x))
        return x


def inputs(n: int = 16) -> Any:
    return bb.asarray(np.random.default_rng(0).standard_normal((n, 8)).astype(np.float32))


def filled(model: Any) -> Any:
    """The model with adapters that are not zero."""
    rng = np.random.default_rng(3)
    state = {
        path: (rng.normal(size=x.shape) * 0.3 + ("magnitude" in path)).astype("float32")
        for path, x in model.named_parameters()
        if x.is_require_grad
    }
    model.load_state_dict(state, strict=False)
    return model


def weight_of(layer: Any) -> Any:
    """The adapted weight in float64, from the papers' formulas."""
    base = layer.base.weight
    base = base.dequantize() if base.dtype.kind == "quantized" else base
    a, b = (x.numpy().astype("float64") for x in (layer.lora_A, layer.lora_B))
    weight = base.numpy().astype("float64") + layer.scaling * b @ a
    if layer.lora_magnitude_vector is not None:
        weight *= (layer.lora_magnitude_vector.numpy() / np.linalg.norm(weight, axis=1))[:, None]
    return weight


# ---- the layer ----


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("scheme", [None, INT4])
def test_adapted_and_merged_layers_compute_the_formula(scheme: str | None, options: dict[str, Any]) -> None:
    base = nn.Sequential(nn.Linear(8, 6))
    base = base if scheme is None else nn.quantize_model(base, scheme)
    model: Any = filled(nn.add_adapters(base, 3, **options))
    layer, x = model[0], inputs()
    alpha = options.get("alpha", 3.0)
    assert layer.scaling == pytest.approx(alpha / (math.sqrt(3) if options.get("use_rslora") else 3))
    expected = x.numpy().astype("float64") @ weight_of(layer).T + layer.base.bias.numpy()
    np.testing.assert_allclose(model(x).numpy(), expected, rtol=1e-5, atol=1e-5)
    merged = nn.merge_adapters(model, dequantize=True)
    assert type(merged[0]) is nn.Linear
    np.testing.assert_allclose(merged(x).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert not merged[0].weight.is_require_grad
    if scheme is not None:
        again: Any = nn.merge_adapters(model)
        assert again[0].weight.dtype.name == scheme
        step = np.abs(weight_of(layer)).reshape(6, 2, 4).max(axis=2).repeat(4, 1).reshape(6, 8) / 7
        assert (np.abs(again[0].weight.dequantize().numpy() - weight_of(layer)) <= step / 2 + 1e-6).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype: str) -> None:
    model = filled(nn.add_adapters(nn.Sequential(nn.Linear(8, 6)), 2, use_dora=True)).astype(dtype)
    x = inputs().astype(dtype)
    merged = nn.merge_adapters(model)
    assert merged[0].weight.dtype.name == dtype
    np.testing.assert_allclose(
        merged(x).astype("float32").numpy(), model(x).astype("float32").numpy(), atol={"float64": 1e-6}.get(dtype, 0.1)
    )


def test_new_adapters_and_rows_of_zeros_change_nothing() -> None:
    base = nn.Linear(8, 6)
    base.weight = bb.asarray(np.vstack([np.zeros((1, 8)), np.eye(5, 8)]).astype("float32")).require_grad()
    for options in KINDS:
        model = nn.add_adapters(nn.Sequential(base), 2, **options)
        np.testing.assert_allclose(model(inputs()).numpy(), base(inputs()).numpy(), rtol=1e-6, atol=1e-6)


def test_no_gradient_flows_through_row_norms() -> None:
    model: Any = filled(nn.add_adapters(nn.Sequential(nn.Linear(8, 6)), 2, use_dora=True)).astype("float64")
    layer, x = model[0], inputs().astype("float64")
    lengths = np.linalg.norm(
        layer.base.weight.numpy() + layer.scaling * layer.lora_B.numpy() @ layer.lora_A.numpy(), axis=1
    )
    grads = model(x).sum().backward()
    ones = np.ones((16, 6)) * (layer.lora_magnitude_vector.numpy() / lengths)
    inner = x.numpy() @ layer.lora_A.numpy().T
    np.testing.assert_allclose(layer.lora_B.grad(grads).numpy(), layer.scaling * ones.T @ inner, rtol=1e-10)
    np.testing.assert_allclose(
        layer.lora_A.grad(grads).numpy(), layer.scaling * (ones @ layer.lora_B.numpy()).T @ x.numpy(), rtol=1e-10
    )
    plain = (model(x).numpy() - layer.base.bias.numpy()) / layer.lora_magnitude_vector.numpy()
    np.testing.assert_allclose(layer.lora_magnitude_vector.grad(grads).numpy(), plain.sum(axis=0), rtol=1e-10)


def test_training_changes_only_the_adapters() -> None:
    model = nn.add_adapters(Net(), 2, use_dora=True, pattern="layers.*")
    before = model.state_dict()
    x, optimizer = inputs(), SGD(0.5)
    losses = []
    for _ in range(20):
        loss = mse_loss(model(x), 0.3 * x[:, :4])
        optimizer.step(model, loss.backward())
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    changed = {path for path, y in model.state_dict().items() if not bool((y == before[path]).all())}
    assert changed == {f"layers.{i}.{part}" for i in (0, 1) for part in ("lora_A", "lora_B", "lora_magnitude_vector")}


# ---- files ----


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("scheme", [None, INT4])
def test_adapters_are_saved_and_loaded_without_their_base(
    tmp_path: Path, scheme: str | None, options: dict[str, Any]
) -> None:
    base = Net() if scheme is None else nn.quantize_model(Net(), scheme)
    model = filled(nn.add_adapters(base, 3, pattern=("first", "layers.1"), **options))
    save_adapters(model, tmp_path / "adapter")
    again = load_adapters(base, tmp_path / "adapter")
    expected, found = dict(model.named_parameters()), dict(again.named_parameters())
    assert expected.keys() == found.keys()
    for path, x in expected.items():
        np.testing.assert_array_equal(found[path].numpy(), x.numpy())
        assert found[path].is_require_grad == x.is_require_grad
    np.testing.assert_array_equal(again(inputs()).numpy(), model(inputs()).numpy())
    kept = [path for path, x in base.named_modules() if isinstance(x, nn.LoRALinear)]
    assert not kept, "the base is unchanged"


def test_a_base_with_other_values_is_refused_by_default(tmp_path: Path) -> None:
    model = filled(nn.add_adapters(Net(), 2))
    save_adapters(model, tmp_path)
    changed = Net()
    changed.first.bias = (changed.first.bias.detach() + 1e-3).require_grad()  # type: ignore[union-attr]
    for other in (Net(2), changed, nn.quantize_model(Net(), INT4), Net().astype("float16")):
        with pytest.raises(ArgumentError, match=r"trained on another base.*strict=False"):
            load_adapters(other, tmp_path)
        assert isinstance(load_adapters(other, tmp_path, strict=False).first, nn.LoRALinear)
    assert isinstance(load_adapters(Net().freeze(), tmp_path).first, nn.LoRALinear)


def test_layers_of_different_ranks_and_names_that_end_alike(tmp_path: Path) -> None:
    class Ends(nn.Module):
        def __init__(self) -> None:
            self.proj = nn.Linear(3, 3)
            self.deep = {"proj": nn.Linear(3, 3)}

        def forward(self, x: Any) -> Any:
            return self.deep["proj"](self.proj(x))

    base = Ends()
    model = filled(nn.add_adapters(base, 1, pattern="proj"))
    save_adapters(model, tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert config["target_modules"] == "proj", "a regular expression: a list would match deep.proj too"
    model.deep["proj"] = nn.LoRALinear(base.deep["proj"], 2, alpha=5.0)
    filled(model)
    save_adapters(model, tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert config["target_modules"] == ["deep.proj", "proj"]
    again = load_adapters(base, tmp_path, strict=False)
    x = bb.ones((2, 3))
    np.testing.assert_allclose(again(x).numpy(), model(x).numpy(), rtol=1e-6)


def test_names_of_another_library(tmp_path: Path) -> None:
    class Renamed(Net):
        def rename_weight(self, name: str) -> Any:
            return name.replace("model.", "").replace("h.", "layers.")

    base = Renamed()
    model = filled(nn.add_adapters(base, 2))
    save_adapters(model, tmp_path, rename=lambda path: "model." + path.replace("layers.", "h."))
    from safetensors import safe_open

    with safe_open(tmp_path / TENSORS, "numpy") as file:
        assert "base_model.model.model.h.0.lora_A.weight" in set(file.keys())
    np.testing.assert_array_equal(load_adapters(base, tmp_path)(inputs()).numpy(), model(inputs()).numpy())
    only = load_adapters(base, tmp_path, rename=lambda name: "first.weight" if "first" in name else None)
    assert [path for path, x in only.named_modules() if isinstance(x, nn.LoRALinear)] == ["first"]


def test_bad_models(tmp_path: Path) -> None:
    adapted = nn.add_adapters(Net(), 2)
    with pytest.raises(ArgumentError, match="save_adapters: the model has no adapters"):
        save_adapters(Net(), tmp_path)
    with pytest.raises(ArgumentError, match="merge_adapters: the model has no adapters"):
        nn.merge_adapters(Net())
    with pytest.raises(ArgumentError, match=r"merge_adapters: the model is itself an adapter: call its merged\(\)"):
        nn.merge_adapters(adapted.first)
    with pytest.raises(ArgumentError, match=r"'first\.base\.bias' requires a gradient too"):
        save_adapters(nn.add_adapters(Net(), 2).require_grad("first.base.bias"), tmp_path)
    mixed = nn.add_adapters(Net(), 2)
    mixed.first = nn.LoRALinear(Net().first, 2, use_dora=True)  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match="the same use_rslora and use_dora"):
        save_adapters(mixed, tmp_path)
    save_adapters(adapted, tmp_path)
    with pytest.raises(ArgumentError, match="has adapters already: give its base"):
        load_adapters(adapted, tmp_path)
    with pytest.raises(ArgumentError, match="no linear layer 'first'"):
        load_adapters(nn.Sequential(nn.Linear(8, 12)), tmp_path, strict=False)
    with pytest.raises(ArgumentError, match="returns the path of a weight"):
        load_adapters(Net(), tmp_path, rename=lambda name: "first")
    with pytest.raises(ArgumentError, match="two adapters are renamed to first"):
        load_adapters(Net(), tmp_path, rename=lambda name: "first.weight")
    with pytest.raises(ArgumentError, match="no adapter is left"):
        load_adapters(Net(), tmp_path, rename=lambda name: None)
    with pytest.raises(FileNotFoundError):
        load_adapters(Net(), tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "adapters of the kind 'IA3'"),
        ({"bias": "all"}, "adapters that change biases are not read"),
        ({"modules_to_save": ["head"]}, "modules_to_save is"),
        ({"use_dora": 1}, "use_dora is true or false"),
        ({"use_dora": True}, "lacks lora_magnitude_vector"),
        ({"rank_pattern": [1]}, "rank_pattern is a table"),
        ({"rank_pattern": {"(": 1}}, "the pattern .* is not read"),
        ({"r": "2"}, "r of first is a number"),
        ({"r": 2.5}, "whole number"),
        ({"lora_alpha": None}, "lora_alpha of first is a number"),
        ({"lora_alpha": math.inf}, "lora_alpha of first is a number"),
        ({"r": 3}, "lora_A of first is .2, 8. there, and .3, 8. fits"),
    ],
)
def test_configurations_that_do_not_fit(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    save_adapters(nn.add_adapters(Net(), 2), tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(config | change))
    with pytest.raises((FileFormatError, ShapeError), match=words):
        load_adapters(Net(), tmp_path)


def test_damaged_files(tmp_path: Path) -> None:
    save_adapters(nn.add_adapters(Net(), 2), tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in (CONFIG, TENSORS)}
    rng = np.random.default_rng(0)
    for n in range(300):
        name = (CONFIG, TENSORS)[n % 2]
        damaged = bytearray(whole[name])
        for place in rng.integers(0, min(len(damaged), 1200), 3):
            damaged[place] = rng.integers(0, 256)
        (tmp_path / name).write_bytes(bytes(damaged[: rng.integers(1, len(damaged))] if n % 5 == 0 else damaged))
        with contextlib.suppress(BackburnError, OSError):
            load_adapters(Net(), tmp_path, strict=False)
        (tmp_path / name).write_bytes(whole[name])
    names = {b"lora_A": b"lora_X", b"base_model.model": b"base_model_model"}
    for old, new in names.items():
        (tmp_path / TENSORS).write_bytes(whole[TENSORS].replace(old, new))
        with pytest.raises(FileFormatError, match="not part of an adapter"):
            load_adapters(Net(), tmp_path)


# ---- PEFT ----


def torch_net() -> Any:
    torch = pytest.importorskip("torch", reason="PEFT needs PyTorch")

    class TorchNet(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(8, 12)
            self.layers = torch.nn.ModuleList([torch.nn.Linear(12, 12), torch.nn.Linear(12, 4, bias=False)])

        def forward(self, x: Any) -> Any:
            for layer in (self.first, *self.layers):
                x = torch.tanh(layer(x))
            return x

    made = TorchNet()
    made.load_state_dict({name: torch.tensor(x.numpy()) for name, x in Net().state_dict().items()})
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", KINDS)
def test_peft_reads_backburn_adapters(tmp_path: Path, options: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is the reference")
    torch = pytest.importorskip("torch")
    model = filled(nn.add_adapters(Net(), 2, pattern=("first", "layers.0"), **options))
    kinds = {name: value for name, value in options.items() if name != "alpha"}
    model.layers[1] = filled(nn.LoRALinear(model.layers[1], 3, alpha=7.0, **kinds))
    save_adapters(model, tmp_path)
    theirs = peft.PeftModel.from_pretrained(torch_net(), tmp_path)
    x = inputs()
    expected = theirs(torch.tensor(x.numpy())).detach().numpy()
    np.testing.assert_allclose(model(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    merged = theirs.merge_and_unload()
    ours: Any = nn.merge_adapters(model)
    np.testing.assert_allclose(
        ours.layers[1].weight.numpy(), merged.layers[1].weight.detach().numpy(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", KINDS)
def test_peft_adapters_are_read_with_equal_gradients(tmp_path: Path, options: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is the reference")
    torch = pytest.importorskip("torch")
    given = {"lora_alpha": options.get("alpha", 2), **{k: v for k, v in options.items() if k != "alpha"}}
    config = peft.LoraConfig(
        r=2, target_modules=["first", "layers.1"], init_lora_weights=False, rank_pattern={"layers.1": 3},
        alpha_pattern={"first": 5}, **given,
    )  # fmt: skip
    theirs = peft.get_peft_model(torch_net(), config)
    theirs.save_pretrained(tmp_path)
    model: Any = load_adapters(Net(), tmp_path)
    x, y = inputs(), torch.tensor(inputs().numpy())
    out = theirs(y)
    np.testing.assert_allclose(model(x).numpy(), out.detach().numpy(), rtol=1e-5, atol=1e-6)
    (out**2).sum().backward()
    grads = (model(x) ** 2.0).sum().backward()
    layer = theirs.base_model.model.first
    for name in ("lora_A", "lora_B"):
        expected = getattr(layer, name)["default"].weight.grad.numpy()
        np.testing.assert_allclose(getattr(model.first, name).grad(grads).numpy(), expected, rtol=1e-4, atol=1e-5)
    if options.get("use_dora"):
        expected = layer.lora_magnitude_vector["default"].weight.grad.numpy()
        np.testing.assert_allclose(
            model.first.lora_magnitude_vector.grad(grads).numpy(), expected, rtol=1e-4, atol=1e-5
        )


def test_a_folder_as_peft_writes_it(tmp_path: Path) -> None:
    """A frozen configuration of PEFT 0.21, with the keys that matter and some that do not."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(5)
    tensors = {
        "base_model.model.first.lora_A.weight": rng.normal(size=(2, 8)).astype("float32"),
        "base_model.model.first.lora_B.weight": rng.normal(size=(12, 2)).astype("float32"),
        "base_model.model.first.lora_magnitude_vector": rng.uniform(1.0, 2.0, size=12).astype("float32"),
    }
    save_file(tensors, tmp_path / TENSORS, metadata={"format": "pt"})
    config: dict[str, Any] = {
        "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": None, "bias": "none",
        "fan_in_fan_out": False, "inference_mode": True, "lora_alpha": 4, "lora_dropout": 0.05, "modules_to_save": None,
        "peft_type": "LORA", "peft_version": "0.21.2", "r": 2, "rank_pattern": {}, "target_modules": ["first"],
        "task_type": None, "use_dora": True, "use_rslora": True,
    }  # fmt: skip
    (tmp_path / CONFIG).write_text(json.dumps(config))
    layer: Any = load_adapters(Net(), tmp_path).first
    a, b, magnitude = tensors.values()
    weight = Net().first.weight.numpy() + 4 / math.sqrt(2) * b @ a
    weight *= (magnitude / np.linalg.norm(weight, axis=1))[:, None]
    np.testing.assert_allclose(layer.merged().weight.numpy(), weight, rtol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("init_lora_weights", "pissa"), ("init_lora_weights", "pissa_niter_4"), ("init_lora_weights", "olora"),
        ("init_lora_weights", "corda"), ("init_lora_weights", "loftq"), ("init_lora_weights", "lora_ga"),
        ("init_lora_weights", "of_later"), ("trainable_token_indices", [1]), ("target_parameters", ["w"]),
        ("arrow_config", {"top_k": 1}), ("kasa_config", {"beta": 1.0}), ("monteclora_config", {"n": 2}),
        ("ensure_weight_tying", True), ("modules_to_save", ["head"]), ("lora_bias", True), ("bias", "all"),
    ],
)  # fmt: skip
def test_metadata_that_change_results_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    base = nn.Sequential(nn.Linear(4, 2))
    bb.io.save_adapters(nn.add_adapters(base, rank=1), tmp_path)
    about = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**about, key: value}))
    with pytest.raises(FileFormatError, match=f"{key} is "):
        bb.io.load_adapters(base, tmp_path)


def test_unknown_metadata_are_named(tmp_path: Path) -> None:
    base = nn.Sequential(nn.Linear(4, 2))
    bb.io.save_adapters(nn.add_adapters(base, rank=1), tmp_path)
    about = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**about, "init_lora_weights": "gaussian", "new": 3}))
    with pytest.warns(MetadataWarning, match="adapter_config.json: 'new': not known here, and ignored"):
        bb.io.load_adapters(base, tmp_path)
