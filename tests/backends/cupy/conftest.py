"""The stand-in for CuPy, and the marker ``stand_in`` for all tests in this folder that need no GPU."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.backends.cupy.stand_in.use import forget, standing_in


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test, so that it runs only with ``-m stand_in``."""
    if item.get_closest_marker("gpu") is None:
        item.add_marker(pytest.mark.stand_in)


@pytest.fixture(scope="module")
def cupy() -> Iterator[Any]:
    """The stand-in for CuPy as the module ``cupy``."""
    with standing_in() as module:
        yield module


@pytest.fixture
def without_cudnn(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in for CuPy without the one for cuDNN."""
    monkeypatch.setitem(importlib.import_module("cudnn").SETTINGS, "version", None)
    forget()
    yield
    forget()
