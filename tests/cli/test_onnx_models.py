"""``backburn run`` and ``backburn info`` on ONNX models."""

import pytest

pytest.importorskip("onnx", reason="reading ONNX models needs the package onnx")
import numpy as np
from tests.onnx.exported import FOLDER, far, numbers

from backburn.cli import main


@pytest.mark.parametrize("backend", ["numpy", "autodiff(numpy)"])
def test_run_writes_the_outputs(backend, tmp_path, capsys):
    arrays = numbers("mlp")
    np.savez(tmp_path / "x.npz", anything=arrays["input:0"])
    words = ["run", str(FOLDER / "mlp.onnx"), "--input", str(tmp_path / "x.npz"), "--output", str(tmp_path / "y.npz")]
    assert main([*words, "--backend", backend]) == 0
    (name,) = np.load(tmp_path / "y.npz").files
    assert far(np.load(tmp_path / "y.npz")[name], arrays["output"]) < 1e-5
    assert capsys.readouterr().out == f"{name}: float32[5, 3]\n"


def test_run_prints_the_outputs_of_inputs_by_name(tmp_path, capsys):
    arrays = numbers("einsums")
    np.savez(tmp_path / "x.npz", x=arrays["input:0"], y=arrays["input:1"])
    assert main(["run", str(FOLDER / "einsums.onnx"), "--input", str(tmp_path / "x.npz")]) == 0
    assert "float32[2, 4]\nTensor([[" in capsys.readouterr().out


def test_run_reports_wrong_inputs_and_files(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=np.ones(3), z=np.ones(3))
    assert main(["run", str(FOLDER / "einsums.onnx"), "--input", str(tmp_path / "x.npz")]) == 2
    assert "has the arrays z, and the model takes x, y" in capsys.readouterr().err
    (tmp_path / "x.onnx").write_bytes((tmp_path / "x.npz").read_bytes())
    assert main(["run", str(tmp_path / "x.onnx"), "--input", str(tmp_path / "x.npz")]) == 2
    assert "not an ONNX model" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_files_of_weights_are_not_taken_for_damaged_models(name, tmp_path, capsys):
    (tmp_path / name).write_bytes(b"x")
    assert main(["info", str(tmp_path / name)]) == 2
    assert f"{name} holds weights, and info takes models of ONNX" in capsys.readouterr().err
    assert main(["run", str(tmp_path / name), "--input", "x.npz"]) == 2
    assert "'backburn evaluate' and 'backburn predict'" in capsys.readouterr().err


def test_info_shows_a_model(capsys):
    assert main(["info", str(FOLDER / "gpt.onnx")]) == 0
    shown = capsys.readouterr().out
    assert "int64[s" in shown or "int64[n" in shown
    assert "lm_head.weight" in shown
    assert "MatMul" in shown
    assert main(["info", str(FOLDER / "gpt.onnx"), "--source"]) == 2
    assert "not of a model" in capsys.readouterr().err


def test_info_prefers_an_operation_to_a_file_of_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sqrt").write_text("not a model")
    assert main(["info", "sqrt"]) == 0
    assert capsys.readouterr().out.startswith("sqrt(x: F, /) -> F\n")
    assert main(["info", "./sqrt"]) == 2
