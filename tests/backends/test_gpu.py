"""The contract on the PyTorch example backend on a CUDA device; for CuPy see ``backends/cupy/test_gpu.py``."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from backburn.conformance import SAMPLES, Sample, SampleSet, checks
from backburn.conformance.checks.derivatives import check_derivative
from backburn.conformance.checks.kinds import VALUE_KINDS
from backburn.conformance.samples.calls import leaves
from backburn.ops.table import OPERATIONS

EXAMPLES = Path(__file__).parents[2] / "examples" / "backends" / "backburn_torch"


def why_not() -> str | None:
    """Why PyTorch cannot use a CUDA device; None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    return None if torch.cuda.is_available() else "PyTorch sees no CUDA device"


REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(scope="module")
def base() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return importlib.import_module("backburn_torch").TorchBackend(device=0)


@pytest.mark.parametrize("name", SAMPLES)
def test_values_on_the_device(name: str, base: Any) -> None:
    for check in checks(base, ops=[name], kinds=[*VALUE_KINDS, "dtype"]):
        check()


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
def test_first_derivatives_on_the_device(samples: SampleSet, base: Any) -> None:
    def smooth(sample: Sample) -> bool:
        return OPERATIONS[samples.name].differentiable and bool(leaves(sample)) and sample.smooth >= 1

    for sample in [s for s in samples.cases if smooth(s)][:1]:
        check_derivative(samples.name, sample, base, 1, 1e-6 * samples.gradient_tolerance)
