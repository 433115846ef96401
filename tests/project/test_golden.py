"""Golden files: the generated code of three operations, so that changes of the generator are visible in diffs."""

from __future__ import annotations

import pytest
from tools.write_golden import GOLDEN, NAMES, path_of, text_of


@pytest.mark.parametrize("name", NAMES)
def test_the_generated_code_is_that_of_the_golden_file(name: str) -> None:
    stored = path_of(name).read_text(encoding="utf-8")
    assert f"def {name}(self, x" in stored
    assert text_of(name) == stored, "run: python tools/write_golden.py, and read the differences"


def test_every_golden_file_belongs_to_an_operation() -> None:
    assert {path.name for path in GOLDEN.glob("*.py")} == {path_of(name).name for name in NAMES}
