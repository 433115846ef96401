"""The marker ``stand_in`` for every test of this folder that needs no GPU."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test, so that ``-m "not stand_in"`` leaves out the CuPy backend on the CPU."""
    if item.get_closest_marker("gpu") is None:
        item.add_marker(pytest.mark.stand_in)
