"""The pages of operations and of gradient rules, which the documentation generates from the contract."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from backburn.ops.table import OPERATIONS

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import an extension of the documentation build by name."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before & {path.stem for path in EXTENSIONS.glob("*.py")}:
        del sys.modules[name]


@pytest.fixture
def table(extensions: Callable[[str], ModuleType]) -> ModuleType:
    return extensions("operation_table")


@pytest.fixture
def rules(extensions: Callable[[str], ModuleType]) -> dict[str, str]:
    """Return the sections of the page of gradient rules by operation, and the whole page under the empty string."""
    page = extensions("gradient_rules").page()
    return {part.partition("\n")[0]: part for part in page.split("\n### ")[1:]} | {"": page}


def test_every_operation_of_the_contract_is_on_the_page_once(table: ModuleType) -> None:
    page = table.page()
    for name, entry in OPERATIONS.items():
        if entry.body.__module__.startswith("backburn."):
            assert page.count(f"| {{py:meth}}`{name} <") == 1, name


def test_rows_say_what_the_contract_says(table: ModuleType) -> None:
    rows = {line.split("`")[1].split(" ")[0]: line for line in table.page().splitlines() if line.startswith("| {py:")}
    assert (
        "| float, complex, int | `float16`, `float32`, `float64`; `complex64`, `complex128`; `int8` – "
        in rows["matmul"]
    )
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


def test_every_gradient_rule_is_on_the_page_of_rules(rules: dict[str, str]) -> None:
    """The page shows the registering statement, and the functions that are not lambdas."""
    smooth = [e for e in OPERATIONS.values() if e.differentiable and e.body.__module__.startswith("backburn.")]
    assert len(smooth) > 200
    shared = rules[""].partition("## Functions that several rules call")[2]
    for entry in smooth:
        functions = [r.function for r in entry.gradients] + [t.function for t in entry.tangents if t.function]
        if not entry.gradients:
            assert entry.name not in rules
            assert rules[""].count(f"{{py:meth}}`{entry.name} <") == 1
            assert not functions
        for function in functions:
            shown = rules[entry.name] + shared
            assert all(line.strip() in shown for line in inspect.getsource(function).splitlines()), entry.name
    assert set(rules) == {e.name for e in smooth if e.gradients} | {""}


def test_a_rule_is_shown_as_it_is_written(rules: dict[str, str]) -> None:
    assert "gradient_rule(mul, x=lambda k, g, y: k.mul(g, y), y=lambda k, g, x: k.mul(g, x))" in rules["mul"]
    assert "`(x, y, /)`. Tangent: *elementwise*." in rules["mul"]
    assert "def grad_pow_x(k: Any, g: Any, x: Any, y: Any) -> Any:" in rules["pow"]
    assert "tangent(softmax, " in rules["softmax"]
    assert "Tangent: *tangent*." in rules["softmax"]
    assert "Tangent: *linear*." in rules["matmul"]
    assert "linear_in(matmul, " in rules["matmul"]
    assert "`grad_zero_x`: [below](#functions-that-several-rules-call)." in rules["sign"]
    assert rules[""].count("def grad_zero_x(") == 1
