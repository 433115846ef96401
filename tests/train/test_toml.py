"""TOML with the lines of its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from backburn.base.errors import ConfigError
from backburn.train.config import read_config
from backburn.train.toml import line_of, read_toml

TEXT = """\
# a comment
backend = "numpy"   # line 2

[train]
epochs = 3
"quoted key" = 1

[data.distort]
shift = 1.0

[model]
hidden = [
    # a comment in between
    10,
    20,
]
note = '''
[optimizer]
name = "sgd"
'''

[optimizer]
name = "sgd"
options.rate = 1
inline = { a = 1, b = { c = 2 } }
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (["backend"], 2),
        (["train"], 4),
        (["train", "epochs"], 5),
        (["train", "quoted key"], 6),
        (["data"], 8),
        (["data", "distort", "shift"], 9),
        (["model", "hidden"], 12),
        (["model", "hidden", 1], 12),
        (["model", "note"], 17),
        (["optimizer"], 22),
        (["optimizer", "name"], 23),
        (["optimizer", "options", "rate"], 24),
        (["optimizer", "inline", "b", "c"], 25),
        (["optimizer", "missing"], 22),
        (["missing"], None),
        ([], None),
    ],
)
def test_line_of_a_key(keys, line) -> None:
    assert line_of(TEXT, keys) == line


def test_long_comments_are_skipped_in_linear_time() -> None:
    """Also comments that look like statements, and at the end of the file."""
    signs = "#" * 100_000
    assert line_of(f"a = 1\n{signs}\n[b]\nc = 2 {signs}\n", ["b", "c"]) == 4
    assert line_of(f"a = 1\n# b = 2\n{signs}", ["b"]) is None


def test_lines_of_windows_files() -> None:
    assert line_of(TEXT.replace("\n", "\r\n"), ["optimizer", "name"]) == 23


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = 1\nb =\n", r"c\.toml, line 2: no TOML: Invalid value"),
        (b"a = 1\na = 2\n", r"c\.toml, line 2: no TOML: Cannot overwrite"),
        (b'a = "\n', r"c\.toml, line 1: no TOML: "),
        (b"a = [1,\n2\n", r"c\.toml, line 2: no TOML: "),
        (b"\xff\xfe", r"c\.toml: no TOML file: it is not UTF-8"),
    ],
)
def test_errors_of_toml_name_the_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_toml(tmp_path / "c.toml")


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf[train]\nepochs = 3\n")
    assert read_config(path).config.train.epochs == 3
    path.write_bytes(b"\xef\xbb\xbf[train]\nepochs = 0\n")
    with pytest.raises(ConfigError, match=r"c\.toml, line 2: train\.epochs = 0"):
        read_config(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: the configuration cannot be read: No such file"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="directory"):
        read_config(tmp_path)
