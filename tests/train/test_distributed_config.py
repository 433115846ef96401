"""The table ``[distributed]``: its keys, its errors, and runs on a mesh in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim, train
from backburn.base.errors import ArgumentError, ConfigError
from backburn.distributed import mesh, place, placement, plans
from backburn.io import load_model, load_state
from backburn.nn.functional import cross_entropy
from backburn.train.building import build, check_plan, mesh_of
from backburn.train.config import Run, read_config

X = np.random.default_rng(0).normal(size=(40, 6))
Y = np.random.default_rng(1).integers(0, 3, 40)
WORDS = np.random.default_rng(2).integers(0, 16, (12, 5))


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))


def encoder() -> nn.Module:
    block = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.0)
    return nn.Sequential(nn.Embedding(16, 8), block, nn.Linear(8, 16))


def rows() -> Any:
    return bb.data.batches(X, Y, batch_size=15, seed=0)


def words() -> Any:
    return bb.data.batches(WORDS, WORDS, batch_size=5, seed=0)


def loss(model: Any, batch: Any) -> Any:
    return cross_entropy(model(batch[0]), batch[1])


def configured(tmp_path: Path, table: str, model: str = "layers", data: str = "rows") -> Run:
    module = "tests.train.test_distributed_config"
    path = tmp_path / "run.toml"
    path.write_text(
        f'[model]\nbuild = "{module}:{model}"\n[data]\nbuild = "{module}:{data}"\n[loss]\nfunction = "{module}:loss"\n'
        f"[train]\nepochs = 2\n{table}"
    )
    return read_config(path)


def trained(run: Run) -> Any:
    grid = mesh_of(run)
    backend = bb.load_backend("autodiff(numpy)") if grid is None else grid.backend()
    return build(run, backend, [], None, grid).trainer.fit(2)


@pytest.mark.parametrize("parameters", ["replicated", "sharded", "state"])
def test_a_configured_run_equals_that_of_one_process(tmp_path: Path, parameters: str) -> None:
    expected = trained(configured(tmp_path, ""))
    found = trained(configured(tmp_path, f'[distributed]\nmesh = {{ dp = 4 }}\nparameters = "{parameters}"\n'))
    for name in ("loss", "lr"):
        np.testing.assert_allclose([r[name] for r in found.history], [r[name] for r in expected.history], rtol=1e-5)
    weights = [placement(x)["dp"] for x in found.model.parameters()]
    state = [placement(x)["dp"] for x in found.optimizer.state_tensors().values()]
    assert all(axis is not None for axis in weights) == (parameters == "sharded")
    assert all(axis is not None for axis in state) == (parameters != "replicated")
    buffers = [placement(x)["dp"] for _, x in found.model.named_buffers() if x.dtype.kind == "float"]
    assert buffers == [None, None]


def test_layers_of_a_transformer_are_cut_over_tp(tmp_path: Path) -> None:
    table = '[distributed]\nmesh = { dp = 2, tp = 2 }\nplan = "transformer"\n'
    expected = trained(configured(tmp_path, "", "encoder", "words"))
    found = trained(configured(tmp_path, table, "encoder", "words"))
    np.testing.assert_allclose([r["loss"] for r in found.history], [r["loss"] for r in expected.history], rtol=1e-5)
    assert placement(found.model[1].linear1.weight) == {"dp": None, "tp": 0}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[distributed]\nmesh = {}\n", r"run\.toml, line 10: distributed\.mesh = \{\}"),
        ("[distributed]\nmesh = { dp = 0 }\n", r"line 10: distributed\.mesh\.dp = 0"),
        ("[distributed]\nmash = { dp = 2 }\n", r"line 10: \[distributed\] has no key 'mash'.*mesh"),
        ('[distributed]\nmesh = { dp = 2 }\nparameters = "cut"\n', r"line 11: distributed\.parameters = 'cut'"),
        ("[distributed]\nmesh = { dp = 2, tp = 2 }\n", r"line 10: distributed\.mesh: nothing is split over 'tp'"),
        ('[distributed]\nmesh = { dp = 2 }\nplan = "transformer"\n', r"line 11: .* has no axis 'tp'"),
        (
            '[distributed]\nmesh = { tp = 4 }\nparameters = "sharded"\n',
            r"line 10: distributed\.mesh: 'tp' is for splitting layers, and no plan .* or mesh = \{ dp = 4 \}",
        ),
        ("[distributed]\nmesh = { tp = 4 }\n", r"line 10: distributed\.mesh: 'tp' is for splitting layers, and no"),
        (
            '[distributed]\nmesh = { tp = 2 }\nplan = "transformer"\nparameters = "state"\n',
            r"line 12: distributed\.parameters: 'state' splits .* over 'dp', which the mesh does not have",
        ),
        ("[distributed]\nmesh = { threads = 2 }\n", r"line 9: distributed: mesh: takes its axes"),
    ],
)
@pytest.mark.parametrize("find", [mesh_of, check_plan])
def test_errors_name_their_line(tmp_path: Path, table: str, message: str, find: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        find(configured(tmp_path, table))


def test_a_plan_that_does_not_fit_the_model_names_the_table(tmp_path: Path) -> None:
    table = '[distributed]\nmesh = { tp = 4 }\nplan = "transformer"\n'
    run = configured(tmp_path, table, "encoder", "words")
    grid = mesh_of(run)
    assert grid is not None
    with pytest.raises(ConfigError, match=r"line 9: distributed: plans.transformer: 1.self_attn has num_kv_heads=2, "):
        build(run, grid.backend(), [], None, grid)
    with pytest.raises(ConfigError, match=r"line 9: distributed: plans.transformer: 1.self_attn has num_kv_heads=2, "):
        check_plan(run)


def test_a_check_builds_only_the_model_of_a_plan(tmp_path: Path) -> None:
    table = '[distributed]\nmesh = { dp = 3, tp = 2 }\nplan = "transformer"\n'
    assert check_plan(configured(tmp_path, "", "missing")) == ""
    assert check_plan(configured(tmp_path, "[distributed]\nmesh = { dp = 2 }\n", "missing")) == ""
    assert check_plan(configured(tmp_path, table, "encoder")) == ""
    with pytest.raises(ConfigError, match=r"plans\.transformer: Sequential has no layer to split over 'tp'"):
        check_plan(configured(tmp_path, table, "layers"))
    with pytest.raises(ConfigError, match=r"places the parameters of an nn.Module, not of <class 'function'>"):
        check_plan(configured(tmp_path, table, "no_module"))
    found = check_plan(configured(tmp_path, table, "unmade"))
    assert found == "whether the model fits the plan, since it cannot be built here: OSError: no such file"


def no_module() -> Any:
    return loss


def unmade() -> Any:
    raise OSError("no such file")


@pytest.mark.parametrize("table", ["mesh = { dp = 4 }\ntimeout = 8.0", 'mesh = { dp = 2 }\nparameters = "sharded"'])
def test_saved_models_do_not_depend_on_the_mesh(tmp_path: Path, table: str) -> None:
    texts: list[Any] = []
    for text in ("", f"[distributed]\n{table}\ncheck = true\n"):
        run = configured(tmp_path, text)
        grid = mesh_of(run)
        backend = bb.load_backend("autodiff(numpy)") if grid is None else grid.backend()
        folder = tmp_path / f"run {len(texts)}"
        build(run, backend, [], str(folder), grid).trainer.fit(1)
        about = load_model(folder / "model.safetensors").about
        texts.append({name: value for name, value in about.items() if name != "metrics"})
        state = load_state(next((folder / "checkpoints").glob("step-*.safetensors")))
        texts[-1] |= {"state": state["about"], "names": [*state]}
    assert texts[0] == texts[1]
    assert texts[0]["backend"] == "autodiff(numpy)"


def test_processes_without_the_table_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(ConfigError, match=r"run\.toml: 4 processes were started, and the file has no table"):
        mesh_of(configured(tmp_path, ""))


# ---- fit ----


def test_a_model_on_another_backend_is_refused() -> None:
    with bb.use_backend("autodiff(numpy)"):
        model = layers()
    with pytest.raises(ArgumentError, match=r"on autodiff\(numpy\), which is not a backend of mesh\(dp=2\)"):
        train.fit(model, loss, rows(), optimizer=optim.SGD(0.1), epochs=1, mesh=mesh(dp=2))


def test_batches_of_any_loader_are_cut_and_callbacks_see_whole_values() -> None:
    grid, seen = mesh(dp=4), list[Any]()

    class Notes(train.Callback):
        def on_step(self, trainer: Any, row: Any) -> None:
            seen.append(placement(row["loss"]))

    def placed(model: Any, batch: Any) -> Any:
        seen.append(placement(batch["x"]))
        return cross_entropy(model(batch["x"]), batch["y"])

    with bb.use_backend(grid.backend()):
        model = place(layers(), plans.sharded())
        data = [{"x": X[i : i + 15], "y": Y[i : i + 15]} for i in (0, 15, 30)]
        train.fit(model, placed, data, optimizer=optim.SGD(0.1), epochs=1, mesh=grid, callbacks=[Notes()])
    assert seen == [{"dp": 0}, {"dp": None}] * 3
