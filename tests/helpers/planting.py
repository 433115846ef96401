"""Faults planted in the source of a function, for checkers to find."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import pytest


def plant(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> Any:
    """Replace a part of the source of a function or method until ``patch`` is undone; returns the new function."""
    function = inspect.unwrap(vars(owner)[name])
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} must occur once in {name}"
    found: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"<{name}>", "exec"), function.__globals__, found)
    patch.setattr(owner, name, found[name])
    return found[name]
