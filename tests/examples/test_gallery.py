"""The gallery at reduced size: each script runs, learns and draws."""

from __future__ import annotations

import importlib
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import backburn as bb
from backburn.backend import BackendWarning

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "examples"
NAMES = sorted(path.parent.name for path in GALLERY.glob("*/main.py"))


def main_of(name: str) -> Any:
    """The function ``main`` of an example."""
    return runpy.run_path(str(GALLERY / name / "main.py"))["main"]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A function that runs an example at reduced size, checks that it wrote pictures, and returns its results."""

    def run(name: str, *arguments: str) -> Any:
        pytest.importorskip("matplotlib", reason="examples draw with matplotlib (extra train)")
        with bb.random.fork():  # scripts seed the generator
            found = main_of(name)(["--quick", "--plot", str(tmp_path / name), *arguments])
        for theme in ("light", "dark"):
            assert "</svg>" in (tmp_path / f"{name}-{theme}.svg").read_text(encoding="utf-8")
        return found

    return run


def test_a_gpt_beats_letter_frequencies(run: Any) -> None:
    found = run("char_gpt")
    assert found["validation/loss"] < 2.9  # 3.3 nats by frequency alone


def test_a_network_solves_an_equation(run: Any) -> None:
    assert run("pinn")["error"] < 0.3  # 1 for a zero solution


def test_a_neural_operator_works_on_a_finer_grid(run: Any) -> None:
    found = run("fourier_operator")
    assert found["coarse"] < 0.15  # 1 for a zero wave
    assert found["fine"] == pytest.approx(found["coarse"], abs=0.02)


def test_a_circuit_finds_ground_states(run: Any) -> None:
    found = run("quantum_circuit")
    assert found["energy"] < 0.05  # 1.5 at random angles
    assert found["magnetization"] < 0.2


def test_an_autoencoder_beats_the_mean_image(run: Any) -> None:
    found = run("vae")
    assert found["validation/loss"] < 26.3  # 26.8 nats for the mean image
    assert found["validation/divergence"] > 0.5  # the latent space is used


def test_a_convolutional_network_reads_digits(run: Any) -> None:
    assert run("digits_cnn")["accuracy"] > 0.7


def test_cross_validation_of_the_digits(capsys: pytest.CaptureFixture[str]) -> None:
    with bb.random.fork():
        main_of("digits_cnn")(["--quick", "--validate"])
    assert "of 288 images" in capsys.readouterr().out


def test_adapters_of_a_quantized_model_learn(run: Any) -> None:
    found = run("qlora")
    assert abs(found["int4"] - found["float32"]) < 0.1
    assert found["int4 and adapters"] < found["int4"] - 0.15


def test_rates_of_an_equation_are_those_of_the_literature(run: Any) -> None:
    pytest.importorskip("scipy", reason="the example minimizes with SciPy")
    found = run("ode_scipy")
    rates = [found[name] for name in list(found)[:4]]
    assert rates == pytest.approx([0.55, 0.028, 0.80, 0.024], rel=0.05)  # Carpenter, Stan case study, 2018
    assert found["away"] < 1e-3


def test_edges_of_a_graph_raise_the_accuracy(run: Any) -> None:
    found = run("graph_network")
    assert found["with the graph"] > max(0.7, found["without edges"] + 0.05)


def test_an_onnx_file_is_fine_tuned_and_exported(run: Any) -> None:
    pytest.importorskip("onnx", reason="the model is an ONNX file (extra onnx)")
    found = run("onnx_again")
    assert found["the file, fine-tuned"] > max(0.5, found["the file as it was"] + 0.3)
    assert found["away"] < 1e-4


def test_a_policy_balances_the_pole_longer(run: Any) -> None:
    pytest.importorskip("gymnasium", reason="the environment is from Gymnasium (extra gymnasium)")
    assert run("ppo")["return"] > 45.0  # about 22 for random actions


def test_numpy_trains(run: Any) -> None:
    found = run("any_backend", "--backend", "numpy", "capture(numpy)")
    assert found["numpy"] > 0.75
    assert found["away"] < 1e-4


@pytest.mark.parametrize(("name", "kind"), [("torch", "TorchBackend"), ("jax", "JaxBackend")])
def test_other_libraries_train_alike(run: Any, monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.syspath_prepend(str(GALLERY / "backends" / f"backburn_{name}"))
    bb.register_backend(name, getattr(importlib.import_module(f"backburn_{name}"), kind))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackendWarning)
        found = run("any_backend", "--backend", "numpy", name)
    assert found[name] == pytest.approx(found["numpy"], abs=0.01)
    assert found["away"] < 1e-4


def test_the_quantized_digits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("pydantic", reason="its configuration needs pydantic (extra train)")
    monkeypatch.setattr(sys, "argv", ["quantize_digits.py", "--epochs", "1", "--plot", str(tmp_path / "table.svg")])
    with bb.random.fork():
        runpy.run_path(str(GALLERY / "quantize_digits.py"), run_name="__main__")
    assert (tmp_path / "table.svg").exists()
    lines = capsys.readouterr().out.splitlines()
    shares = {line[:34].strip(): float(line.split("%")[0].split()[-1]) for line in lines if line.startswith("int")}
    assert len(shares) == 4
    assert all(share < 30.0 for share in shares.values())  # of the float32 file


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_on_the_page_with_its_pictures(name: str) -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert f"python examples/{name}/main.py" in page
    picture = f"gallery-{name.replace('_', '-')}"
    assert f"{{picture}} {picture}\n" in page
    assert (ROOT / "docs" / "figures" / f"{picture}.svg").stat().st_size < 200_000


def test_an_example_names_its_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script fails at the import of the missing package."""
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ModuleNotFoundError, match="gymnasium"):
        main_of("ppo")
