"""The page of operations, which the documentation writes from the contract."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from backburn.ops.table import OPERATIONS

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    spec = importlib.util.spec_from_file_location("operation_table", EXTENSIONS / "operation_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("public_api", None)


def test_every_operation_of_the_contract_is_on_the_page_once(table: ModuleType) -> None:
    page = table.page()
    for name, entry in OPERATIONS.items():
        if entry.body.__module__.startswith("backburn."):
            assert page.count(f"| {{py:meth}}`{name} <") == 1, name


def test_rows_say_what_the_contract_says(table: ModuleType) -> None:
    rows = {line.split("`")[1].split(" ")[0]: line for line in table.page().splitlines() if line.startswith("| {py:")}
    assert "| float, int | `float16`, `float32`, `float64`; `int8` – `int64`, `uint8` – `uint64` |" in rows["matmul"]
    assert "| same | required | rule: `x`, `y` |" in rows["matmul"]
    assert "| `bool` | required | none |" in rows["less"]
    assert "| float | `float16`, `float32`, `float64` | same | derived | body |" in rows["median"]
    assert "| same, … | derived | none |" in rows["adam_steps"]
    assert "backburn.ops.linalg.Linalg.matmul" in rows["matmul"]


def test_operations_of_users_are_not_on_the_page(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        body = test_rows_say_what_the_contract_says

    monkeypatch.setattr(table, "families", lambda: iter([("mine", [Entry]), ("linalg", [OPERATIONS["matmul"]])]))
    assert table.entries() == [("linalg", [OPERATIONS["matmul"]])]
