"""What the command line prints before a command runs: help, mistyped commands and shell completions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import backburn as bb
from backburn import cli


def test_without_a_command_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: backburn ")
    assert all(f"\n    {name} " in out for name in cli.COMMANDS)


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_it_names_its_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([flag])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"backburn {bb.__version__}\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["trian", "run.toml"], "there is no command 'trian'. Did you mean 'train'?"),
        (["serve"], "there is no command 'serve'. Known: backends, conformance, "),
        (["train"], "the following arguments are required: CONFIG\n"),
        (["--nothing"], "the following arguments are required: COMMAND"),
    ],
)
def test_a_mistake_is_named_with_what_was_probably_meant(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(given)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_shell_completes_commands_options_and_files(tmp_path: Path) -> None:
    if (bash := shutil.which("bash")) is None:
        pytest.skip("bash is not installed")
    made = subprocess.run(
        [sys.executable, "-m", "shtab", "--shell=bash", "backburn.cli.parser"], capture_output=True, check=True
    )
    (tmp_path / "completions").write_bytes(made.stdout)
    (tmp_path / "digits.toml").touch()

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in ("backburn", *words))
        script = f"source completions; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_backburn"
        shown = subprocess.run(
            [bash, "--norc", "-c", f'{script}; echo "${{COMPREPLY[@]}}"'],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return shown.stdout.split()

    assert completed("tr") == ["train"]
    assert completed("train", "--over") == ["--overwrite"]
    assert completed("train", "dig") == ["digits.toml"]
