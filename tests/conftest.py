"""Setup of every test: a clean environment, common fixtures, and which tests are collected or skipped."""

import gc
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

try:
    import hypothesis
except ImportError:  # the GPU tests need only pytest
    hypothesis = None  # type: ignore[assignment]

# The developer's environment variables must not change what is tested.
for variable in [name for name in os.environ if name.startswith("BACKBURN_")]:
    del os.environ[variable]
# Workers share the processors: idle threads spin, which would slow the other workers. Libraries read this on import,
# and processes that tests start inherit it.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    for library in ("BACKBURN", "OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
os.environ["MPLBACKEND"] = "Agg"
# The tests call functions compiled with JAX once or twice: optimization would cost more than it saves.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# No deadline, so that slow machines do not fail; the same examples in every run, so that failures repeat.
if hypothesis is not None:
    hypothesis.settings.register_profile("backburn", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("backburn")


@pytest.fixture(scope="session", autouse=True)
def _lists_are_verified() -> None:
    """Verify each native program and state update that a test records, as with BACKBURN_DEBUG=1."""
    from backburn_numpy.programs import verifier

    verifier.VERIFIES = True


@pytest.fixture
def guarded_memory() -> Iterator[None]:
    """Canaries around every array of the NumPy backend, and NaN in uninitialized memory."""
    from tests.helpers.guards import guarded

    with guarded():
        yield


@pytest.fixture(autouse=True)
def _no_operation_outlives_its_test() -> Iterator[None]:
    """Remove operations that a test added to the table: other tests iterate over it."""
    from backburn.backend.user_operations import withdraw
    from backburn.ops.table import OPERATIONS

    before = set(OPERATIONS)
    yield
    for name in OPERATIONS.keys() - before:
        withdraw(name)


@pytest.fixture(autouse=True)
def _print_options_do_not_outlive_a_test() -> Iterator[None]:
    """Restore the print options, which tests that call every function change."""
    from backburn.tensor.core.print_options import OPTIONS

    before = dict(OPTIONS)
    yield
    OPTIONS.clear()
    OPTIONS.update(before)


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, where it is installed."""
    return pytest.importorskip("torch", reason="torch, the reference, is not installed")


@pytest.fixture(params=[(1, True), (2, True), (2, False)], ids=["one thread", "two threads", "NumPy alone"])
def way_of_computing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test with each implementation that the NumPy backend has for large arrays."""
    import numpy as np

    from backburn_numpy import compiled
    from backburn_numpy.runtime import threads

    count, with_kernels = request.param
    if not with_kernels:
        monkeypatch.setattr(compiled, "_library", None)
        monkeypatch.setattr(compiled, "_kernels", {})
    before = threads.num_threads()
    threads.set_num_threads(count)
    yield
    threads.set_num_threads(before)
    assert np.getbufsize() == 8192  # some operations reduce it during a call


def why_no_gpu() -> str | None:
    """Return the reason why no CUDA device can be used, or None if one can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed ({error})"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable CUDA device ({error})"
    return None if count else "no CUDA device"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection during test collection: each run would traverse all tests collected so far."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


#: A module whose tests are all marked `slow`.
_ALL_SLOW = re.compile(rb"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore modules whose text shows that -m selects none of their tests, which saves importing them in each worker.

    Modules named on the command line are always collected: their tests are reported as deselected.
    """
    wanted = config.getoption("markexpr").split()
    if not collection_path.match("test_*.py") or "or" in wanted or "slow" not in wanted:
        return None
    if any(Path(argument.partition("::")[0]).resolve() == collection_path for argument in config.args):
        return None
    source = collection_path.read_bytes()
    is_wanted = _ALL_SLOW.search(source) is None if "not slow" in " ".join(wanted) else b"mark.slow" in source
    return None if is_wanted else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu`, with the reason, if they cannot run."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := why_no_gpu()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
