"""Kernels compiled for the CPU, once per dtype, or as PTX with the option ``--ptx 90``."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.backends.cupy.emulation import emulated, executed
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.executed import ExecutedRunner, Kernel
from tests.backends.cupy.emulation.operands import FLOATS, host_dtype
from tests.backends.cupy.stand_in import compiled


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ptx", type=int, metavar="ARCHITECTURE", help="execute the kernels' PTX, for example for 90")


@pytest.fixture(scope="session")
def folder() -> Path:
    """The cache of compiled kernels, kept between runs."""
    if reason := emulated.missing():
        pytest.skip(reason)
    return compiled.folder()


@pytest.fixture(scope="session")
def library(folder: Path) -> Any:
    """A function that returns all kernels for a dtype."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        # Each worker begins with a different dtype, so that they share the compilation.
        first = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) * len(FLOATS) // workers
        for each in (*FLOATS[first:], *FLOATS[:first]):
            emulated.build(emulated.program(each), folder)
    return lambda dtype: emulated.build(emulated.program(dtype), folder)


@pytest.fixture(scope="session")
def kernels() -> dict[Any, Kernel]:
    """The PTX kernels used so far."""
    return {}


@pytest.fixture(scope="session", params=FLOATS)
def dtype(request: pytest.FixtureRequest) -> str:
    host_dtype(request.param)
    return str(request.param)


@pytest.fixture
def on(request: pytest.FixtureRequest, dtype: str, folder: Path, kernels: dict[Any, Kernel]) -> EmulatedRunner:
    """A runner whose thread order differs from test to test: results must not depend on it."""
    order = zlib.crc32(request.node.nodeid.encode()) % 8
    architecture = request.config.getoption("--ptx", None)
    if architecture is None:
        return EmulatedRunner({dtype: request.getfixturevalue("library")(dtype)}, order)
    if reason := executed.missing():
        pytest.skip(reason)
    return ExecutedRunner(folder, kernels, int(architecture), order)
