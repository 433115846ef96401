"""Signatures of the namespace against those of the Array API, frozen in ``array_api/signatures.json``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import backburn as bb

FROZEN: dict[str, dict[str, list[Any]]] = json.loads(
    (Path(__file__).parent / "array_api" / "signatures.json").read_text(encoding="utf-8")
)

#: The object that holds the functions of each group of the standard.
OWNERS: dict[str, Any] = {
    "array": bb.Tensor, "fft": bb.fft, "info": bb.__array_namespace_info__(), "linalg": bb.linalg, "namespace": bb,
}  # fmt: skip

CASES = {f"{group}.{name}": found for group in OWNERS for name, found in FROZEN[group].items()}


def ours(name: str) -> Any:
    """Return our function; for tensors, a bound method or a property."""
    group, _, function = name.partition(".")
    found = getattr(OWNERS[group], function)
    return found if group != "array" or isinstance(found, property) else getattr(bb.zeros(2), function)


def differences(function: Callable[..., Any], expected: list[Any]) -> list[str]:
    """Describe each difference from the standard's signature that a call could notice."""
    given = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "surplus", "wrong")]
    positional = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = any(p.kind is p.VAR_POSITIONAL for p in given)
    by_name = {p.name: p for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    found, used = [], set()
    by_position, by_keyword, place = True, "/" not in expected, 0
    for entry in expected:
        if entry == "/":
            by_keyword = True
            continue
        if entry == "*" or (isinstance(entry, str) and entry.startswith("*")):
            if entry != "*" and not several:
                found.append(f"{entry} is missing")
            by_position, by_keyword = False, True
            continue
        name, default = (entry, inspect.Parameter.empty) if isinstance(entry, str) else entry
        parameter = positional[place] if by_position and place < len(positional) else by_name.get(name)
        place += by_position
        if parameter is None or (by_position and by_keyword and parameter.name != name):
            found.append(f"{name} is missing")
            continue
        used.add(parameter.name)
        if by_keyword and parameter.kind is parameter.POSITIONAL_ONLY:
            found.append(f"{name} is positional-only")
        if by_position and parameter.kind is parameter.KEYWORD_ONLY:
            found.append(f"{name} is keyword-only")
        if parameter.default is not parameter.empty and default is inspect.Parameter.empty:
            continue  # required by the standard, optional here
        default = tuple(default) if isinstance(default, list) else default
        if parameter.default != default or isinstance(parameter.default, bool) is not isinstance(default, bool):
            found.append(f"{name}={parameter.default!r}")
    required = [p for p in given if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return found + [f"{p.name} is required" for p in required if p.name not in used]


@pytest.mark.parametrize("name", CASES)
def test_a_function_takes_what_the_standard_says(name: str) -> None:
    found = ours(name)
    if callable(found):
        assert differences(found, CASES[name]) == []
    else:  # a property of tensors
        assert isinstance(found, property)
        assert CASES[name] == []


def test_the_frozen_signatures_are_those_of_the_current_version() -> None:
    assert {"broadcast_shapes", "isin", "searchsorted"} <= FROZEN["namespace"].keys()
    assert {"linalg.eig", "linalg.eigvals"} <= CASES.keys()
    assert len(CASES) > 200
    assert set(FROZEN) == set(OWNERS)


def test_a_difference_of_each_kind_is_found() -> None:
    def function(x: Any, axis: int = 0, /, *, keepdims: bool = False, needed: int) -> None: ...

    assert differences(function, ["x", "/", "*", ["axis", 0], ["keepdims", 0], ["dtype", None]]) == [
        "axis is missing", "keepdims=False", "dtype is missing", "needed is required",
    ]  # fmt: skip
    assert differences(function, ["x", "/", ["axis", -1], "*", "needed"]) == ["axis is positional-only", "axis=0"]
    assert differences(function, ["x", "y", "/", "keepdims", "*arrays", "needed"]) == [
        "keepdims is keyword-only", "*arrays is missing",
    ]  # fmt: skip
