"""The command line: what it prints, where it stops, and how it fails."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backburn import cli
from backburn.base.errors import ArgumentError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "digits.toml"

#: Packages that the extra ``train`` installs.
TRAIN_EXTRA = ("pydantic", "tqdm", "matplotlib")

SMALL = """
[model]
hidden = [32]
dropout = 0.1
[train]
epochs = 2
[output]
folder = "{folder}"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.format(folder=(tmp_path / "out").as_posix()))
    return path


@pytest.fixture
def run(capsys):
    """Run the command line; its exit status, standard output and standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        status = cli.main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return command


def test_info_shows_the_plan_of_a_run(run, config: Path) -> None:
    config.write_text(
        config.read_text().replace("epochs = 2", "epochs = 2\ncapture = false")
    )  # the plan ignores capture = false
    status, out, err = run("info", config, "--plan")
    assert (status, err) == (0, "")
    assert "calls in no pass" in out
    assert "relu" in out
    status, _, err = run("info", "add", "--plan")
    assert status == 2
    assert "write info FILE.toml --plan" in err


def fresh(*arguments: object, module: str = "backburn", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m backburn`` in a new process."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def last(out: str) -> str:
    return out.splitlines()[-1]


# ---- train and evaluate ----


def test_train_prints_progress_and_writes_a_model(run, config: Path, tmp_path: Path) -> None:
    status, out, err = run("train", config)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "data      train 23 batches, validation 1 batch, held-out 1 batch" in lines
    assert "model     Sequential, 2410 parameters" in lines
    assert "backend   autodiff(numpy)" in lines
    epochs = [line for line in lines if line.startswith("epoch")]
    assert len(epochs) == 2
    for number, line in enumerate(epochs, 1):
        shape = (
            rf"epoch {number}/2  loss [\d.]+  accuracy +\d+\.\d\d%  lr 0.001  validation/loss [\d.]+  "
            rf"validation/accuracy +\d+\.\d\d%  [\d.]+ s"
        )
        assert re.fullmatch(shape, line), line
    assert re.fullmatch(r"held-out accuracy: \d\d\.\d\d%", lines[-1])
    assert out.endswith("%\n")
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    expected = ["checkpoints", "config.json", "curves.png", "lock", "metrics.csv", "metrics.jsonl", "model.safetensors"]
    assert names == expected
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_profile_of_the_training_is_printed(run, config: Path) -> None:
    status, out, err = run("train", config, "--backend", "autodiff(profile(numpy))", "--overwrite")
    assert (status, err) == (0, "")
    assert "profile(numpy), all epochs:" in out.splitlines()
    assert re.search(r"^label_cross_entropy_backward +\d+( +\d+\.\d+){2} +\d+\.\d%$", out, re.M)
    assert re.fullmatch(r"held-out accuracy: \d\d\.\d\d%", last(out))


def test_traced_training_writes_a_timeline(run, config: Path, tmp_path: Path) -> None:
    status, out, err = run("train", config, "--backend", "autodiff(trace(numpy, limit=1000))", "--overwrite")
    assert (status, err) == (0, "")
    path = tmp_path / "out" / "timeline.json"
    assert f"timeline  {path}" in out.splitlines()
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert any(event["name"] == "label_cross_entropy_backward" for event in events)


def test_evaluate_prints_the_same_in_a_fresh_process(run, config: Path, tmp_path: Path) -> None:
    _, out, _ = run("train", config)
    model = tmp_path / "out" / "model.safetensors"
    done = fresh("evaluate", model)
    assert (done.returncode, done.stderr) == (0, "")
    assert last(done.stdout) == last(out)
    for spec in ("numpy", "autodiff(autodiff(numpy))"):
        assert last(run("evaluate", model, "--backend", spec)[1]) == last(out)


def test_characters_missing_from_the_output_encoding_are_escaped(config: Path, tmp_path: Path) -> None:
    arguments = ("train", config, "--epochs", 1, "--out", tmp_path / "Größe")
    trained = fresh(*arguments, PYTHONIOENCODING="ascii:strict")
    assert trained.returncode == 0, trained.stderr
    assert "Gr\\xf6\\xdfe" in trained.stdout


def test_the_same_seed_gives_the_same_numbers(run, config: Path, tmp_path: Path) -> None:
    def numbers(*options: object) -> list[str]:
        lines = run("train", config, *options)[1].splitlines()
        return [re.sub("  [0-9.]+ s$", "", line) for line in lines if re.match("epoch|held-out", line)]

    first = numbers("--out", tmp_path / "a")
    assert numbers("--out", tmp_path / "b") == first
    assert numbers("--seed", 3) != first
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]


def test_options_override_the_file(run, config: Path, tmp_path: Path) -> None:
    _, out, _ = run("train", config, "--epochs", 1, "--out", tmp_path / "elsewhere", "--seed", 4)
    assert len(re.findall("^epoch ", out, re.MULTILINE)) == 1
    assert (tmp_path / "elsewhere" / "model.safetensors").exists()
    assert not (tmp_path / "out").exists()


def test_the_order_in_which_a_backend_is_chosen(monkeypatch) -> None:
    from backburn.cli.saved_models import chosen_backend

    assert chosen_backend(None, None).spec == "autodiff(numpy)"
    assert chosen_backend(None, "numpy").spec == "numpy"
    monkeypatch.setenv("BACKBURN_BACKEND", "autodiff(autodiff(numpy))")
    assert chosen_backend(None, "numpy").spec == "autodiff(autodiff(numpy))"
    assert chosen_backend("numpy", "autodiff(numpy)").spec == "numpy"
    monkeypatch.setenv("BACKBURN_BACKEND", "")
    assert chosen_backend(None, "numpy").spec == "numpy"
    assert chosen_backend(None, None).spec == "autodiff(numpy)"


def test_a_plain_backend_is_wrapped_with_a_note(run, config: Path) -> None:
    status, out, err = run("train", config, "--backend", "numpy", "--epochs", 1)
    assert status == 0
    assert "backend   autodiff(numpy)" in out
    assert err == "note: training needs gradients, which numpy does not have: using autodiff(numpy)\n"


@pytest.mark.slow
def test_resume_continues_where_a_run_ended(run, config: Path, tmp_path: Path) -> None:
    _, whole, _ = run("train", config, "--epochs", 4, "--out", tmp_path / "whole")
    run("train", config, "--epochs", 2)
    status, out, _ = run("train", config, "--epochs", 4, "--resume")
    assert status == 0
    assert "resumed after step 46, in epoch 3" in out
    timeless = [re.sub("  [0-9.]+ s$", "", line) for line in (*out.splitlines(), *whole.splitlines())]
    third_and_fourth = [line for line in timeless if re.match("epoch [34]/4", line)]
    assert third_and_fourth[:2] == third_and_fourth[2:]
    assert len(third_and_fourth) == 4
    assert last(out) == last(whole)
    _, again, _ = run("train", config, "--epochs", 4, "--resume")
    assert "epoch 4/4" not in again
    assert last(again) == last(whole)


def test_a_run_is_overwritten_only_with_the_option(run, config: Path, tmp_path: Path) -> None:
    assert run("train", config, "--epochs", 1)[0] == 0
    model = tmp_path / "out" / "model.safetensors"
    before = model.read_bytes()
    status, out, err = run("train", config, "--seed", 5)
    assert (status, out) == (2, "")
    assert "already has a run: " in err
    assert all(option in err for option in ("--resume", "--overwrite", "--out"))
    assert model.read_bytes() == before
    model.unlink()  # resumable checkpoints are kept, too
    assert "already has a run: " in run("train", config, "--seed", 5)[2]
    assert run("train", config, "--seed", 5, "--overwrite")[0] == 0
    assert model.exists()
    with pytest.raises(SystemExit):
        run("train", config, "--resume", "--overwrite")


# Another test in the same process may have started JAX, which warns of any fork.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_keeps_the_last_step(config: Path, tmp_path: Path, run, number: int, status: int) -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    with subprocess.Popen(
        [sys.executable, "-m", "backburn", "train", str(config), "--epochs", "100000"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch      3/"):
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == status
    found = re.search(
        r"interrupted in epoch (\d+) of 100000, after step (\d+): the run is in (.*); continue with\n    (.*)\n", err
    )
    assert found, err
    assert int(found[1]) >= 4
    assert found[3] == str(tmp_path / "out")
    assert found[4] == f"backburn train {config} --resume --epochs 100000"
    assert "Traceback" not in err
    assert run("evaluate", tmp_path / "out" / "model.safetensors")[0] == 0
    resumed, out, _ = run("train", config, "--resume", "--epochs", int(found[1]))
    assert resumed == 0
    assert f"resumed after step {found[2]}, in epoch {found[1]}" in out
    assert len(re.findall("^epoch ", out, re.MULTILINE)) == 1


def test_a_run_in_another_thread_leaves_signals_alone(run, config: Path) -> None:
    """Python handles signals only in the main thread."""
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(run, "train", config, "--epochs", 1).result()[0] == 0


def test_a_killed_run_resumes_from_its_last_saved_epoch(config: Path, tmp_path: Path, run) -> None:
    """A killed run, as after a power failure, writes nothing at the end."""
    path = os.pathsep.join(p for p in sys.path if p)
    program = (
        "import sys; from backburn.cli import main; from backburn.train import callbacks\n"
        "callbacks.PAUSE = 0.0; main(sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "train", str(config), "--epochs", "100000"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch      4/"):
                break
        process.kill()
        printed = [line, *process.stdout]
    number = int(printed[-1].split()[1].partition("/")[0])
    assert run("evaluate", tmp_path / "out" / "model.safetensors")[0] == 0
    status, out, _ = run("train", config, "--resume", "--epochs", number + 1)
    assert status == 0
    found = re.search(r"resumed after step \d+, in epoch (\d+)", out)
    assert found
    assert int(found[1]) > number - 2  # the one being saved when it was killed, and the one before


def test_ctrl_c_during_import_prints_no_traceback() -> None:
    """The command handles Ctrl-C from its first import on."""
    program = (
        "import builtins, sys\n"
        "real = builtins.__import__\n"
        "def slow(name, *args, **kwargs):\n"
        "    if name == 'argparse':\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *args, **kwargs)\n"
        "from backburn.__main__ import main\n"
        "builtins.__import__ = slow\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_run_that_diverges_stops_with_an_error(run, config: Path, tmp_path: Path) -> None:
    text = config.read_text()
    config.write_text(f'{text}[optimizer]\nname = "sgd"\nlearning_rate = 1e30\n')
    status, out, err = run("train", config)
    words = (
        r"fit: training has diverged: .* (nan|inf|not finite).*, in epoch 1\. Try a smaller learning rate than 1e\+30"
    )
    assert status == 2
    assert re.match(f"backburn: {words}.*; the last good state is .*step-00000000", err), err
    assert "held-out accuracy" not in out


def test_a_run_that_diverges_keeps_the_last_good_epoch(run, config: Path, tmp_path: Path, monkeypatch) -> None:
    from backburn.io import load_model
    from backburn.nn.functional import cross_entropy
    from backburn.train import digits

    batches = iter(range(10**6))

    def loss(*x: Any, **options: Any) -> Any:
        return cross_entropy(*x, **options) * (1.0 if next(batches) < 100 else 1e39)

    monkeypatch.setattr(digits, "cross_entropy", loss)
    config.write_text(config.read_text().replace("epochs = 2", "epochs = 5"))
    status, _, err = run("train", config)
    assert status == 2
    found = re.search(r"in epoch (\d)\. .*; the last good state is .*step-(\d+)\.safetensors$", err.strip())
    assert found is not None, err
    assert int(found[2]) == 23 * (int(found[1]) - 1) > 0
    assert load_model(tmp_path / "out" / "model.safetensors").about["epoch"] == int(found[1]) - 1
    monkeypatch.undo()
    assert run("train", config, "--resume")[0] == 0


@pytest.mark.slow
def test_the_example_reaches_97_percent(run, tmp_path: Path) -> None:
    status, out, _ = run("train", EXAMPLE, "--out", tmp_path)
    assert status == 0
    assert float(last(out).removeprefix("held-out accuracy: ").removesuffix("%")) >= 97


# ---- what goes wrong ----


def test_evaluate_refuses_a_backend_without_values(run, config: Path, tmp_path: Path) -> None:
    assert run("train", config, "--epochs", 1)[0] == 0
    status, _, err = run("evaluate", tmp_path / "out" / "model.safetensors", "--backend", "null")
    assert status == 2
    assert "--backend: null computes no values" in err


def test_errors_are_one_message_without_a_traceback(run, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[train]\nepoch = 3\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").write_bytes(b"no model")
    (tmp_path / "elsewhere.toml").write_text("# where\nbackend = 'nunpy'\n")
    (tmp_path / "used" / "model.safetensors").mkdir(parents=True)
    cases = {
        ("train", tmp_path / "nowhere.toml"): "nowhere.toml: the configuration cannot be read: No such file",
        ("train", tmp_path / "wrong.toml"): "wrong.toml, line 2: [train] has no key 'epoch'. Did you mean 'epochs'?",
        ("train", EXAMPLE, "--epochs", "0"): "the option for [train]: train.epochs = 0: it should be greater than 0",
        ("train", EXAMPLE, "--out", tmp_path / "file"): "file cannot be written to: ",
        ("train", EXAMPLE, "--out", tmp_path / "new", "--resume"): "there is nothing to resume in",
        ("train", EXAMPLE, "--backend", "autodif(numpy)"): "--backend: no backend is called 'autodif'",
        ("train", EXAMPLE, "--backend", "cupy"): "--backend: backend 'cupy': ",
        ("train", EXAMPLE, "--backend", "null"): "--backend: null computes no values",
        ("train", EXAMPLE, "--backend", "autodiff(null)"): "--backend: autodiff(null) computes no values",
        ("train", tmp_path / "elsewhere.toml"): "elsewhere.toml, line 2: backend = 'nunpy': no backend is called",
        ("train", EXAMPLE, "--out", ""): "the option for [output]: output.folder = '': this is not a name",
        ("train", EXAMPLE, "--out", "''"): "this is not a name",
        ("train", EXAMPLE, "--out", tmp_path / "used"): "used cannot be used: model.safetensors in it is a folder.",
        ("evaluate", tmp_path / "foreign"): "foreign: no safetensors file, or a damaged one",
        ("evaluate", tmp_path / "nowhere"): "nowhere",
        ("info", "ad"): "the contract has no operation 'ad'",
    }
    for arguments, words in cases.items():
        status, out, err = run(*arguments)
        assert status == 2, arguments
        assert err.startswith("backburn: "), err
        assert words in err
        assert "Traceback" not in err
        assert "epoch " not in out


def test_a_bad_variable_is_named(run, config: Path, monkeypatch) -> None:
    monkeypatch.setenv("BACKBURN_BACKEND", "nunpy")
    status, _, err = run("train", config)
    assert status == 2
    assert err == "backburn: BACKBURN_BACKEND: no backend is called 'nunpy'. Did you mean 'numpy'?\n"


def test_an_unwritable_folder_is_refused_before_training(run, config: Path, tmp_path: Path, monkeypatch) -> None:
    from backburn.train import digits

    monkeypatch.setattr(digits, "data", lambda: pytest.fail("the run had begun"))
    (tmp_path / "file").write_text("")
    assert run("train", config, "--out", tmp_path / "file" / "below")[0] == 2


@pytest.mark.parametrize("how", ["option", "variable"])
def test_tracebacks_are_shown_on_demand(run, monkeypatch, how: str) -> None:
    if how == "variable":
        monkeypatch.setenv("BACKBURN_DEBUG", "1")
    with pytest.raises(ArgumentError):
        run("info", "ad", *(["--debug"] if how == "option" else []))


@pytest.mark.parametrize("package", TRAIN_EXTRA)
def test_a_missing_extra_says_how_to_install_it(config: Path, package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from backburn.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "train", str(config), "--epochs", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    lines = {
        "pydantic": "backburn: pydantic is not installed; configuration files need it: pip install 'backburn[train]'\n",
        "tqdm": "",  # the progress bar needs a terminal
        "matplotlib": "note: without matplotlib there is no picture of the curves: pip install 'backburn[train]'\n",
    }
    assert done.stderr == lines[package]
    assert done.returncode == (2 if package == "pydantic" else 0)
    assert ("held-out accuracy" in done.stdout) == (package != "pydantic")
