"""Names at the top level: listed, documented, each with an example."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
from tools.write_methods import STUB, stub

import backburn as bb
from backburn import _namespace
from backburn.base.dtypes import DType

NAMES = sorted(_namespace.__all__)  # type: ignore[attr-defined]

#: Classes described by their own pages instead of an example.
WITHOUT_EXAMPLE = {"AutodiffBackend", "Backend", "DType", "QuantizedDType"}


def test_type_checkers_know_every_method() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "run: python tools/write_methods.py"


def test_every_listed_name_is_there() -> None:
    assert bb.__all__ == _namespace.__all__  # type: ignore[attr-defined]
    for name in NAMES:
        assert getattr(bb, name) is getattr(_namespace, name)
    assert set(NAMES) - {"__array_namespace_info__"} <= set(dir(bb))
    with pytest.raises(AttributeError, match="no attribute 'summ'"):
        bb.summ  # type: ignore[attr-defined]  # noqa: B018


def described() -> list[str]:
    """The names that need an example: functions and classes, but no constants, dtypes or modules."""
    return [
        name
        for name in NAMES
        if not isinstance(getattr(bb, name), (float, DType, ModuleType, type(None))) and name not in WITHOUT_EXAMPLE
    ]


def test_most_names_are_described() -> None:
    assert len(described()) > 200
    assert set(NAMES) >= WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", described())
def test_every_name_has_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(bb, name)) or ""
    assert ">>>" in text, f"the docstring of bb.{name} has no example"


@pytest.mark.parametrize("name", sorted(WITHOUT_EXAMPLE))
def test_other_classes_have_a_docstring(name: str) -> None:
    assert len(inspect.getdoc(getattr(bb, name)) or "") > 40
