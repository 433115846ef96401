"""The node tests of the installed package onnx: all on NumPy, every sixteenth on other backends.

``python -m tests.onnx.nodes`` runs all of them on any backend.
"""

from types import SimpleNamespace

import pytest

pytest.importorskip("onnx", reason="the node tests need the package onnx")
import numpy as np
from tests.onnx.graphs import model
from tests.onnx.nodes import EXCEPTIONS, backend_of, cases, expected_reason, failure, surprises


@pytest.mark.slow
def test_node_tests_pass_except_for_listed_reasons():
    wrong, _ = surprises(cases("others"), "numpy")
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["autodiff(capture(numpy))", "torch"])
def test_node_tests_pass_on_other_backends(backend):
    if backend == "torch":
        pytest.importorskip("torch", reason="the example's backend needs PyTorch, which is not installed")
    chosen = list(cases("others").items())[3::16]
    wrong, _ = surprises(dict(chosen), backend)
    assert not wrong


@pytest.mark.slow
def test_node_tests_of_pools_and_the_share_that_passes():
    wrong, _ = surprises(cases("pools"), "numpy")
    assert not wrong
    passing = [name for name in cases() if expected_reason(name) is None]
    assert len(passing) >= 1640
    assert len(passing) / len(cases()) > 0.9
    assert {expected_reason(name) for name in cases()} - {None} == set(EXCEPTIONS.values())


def test_wrong_results_are_detected():
    x = np.asarray([-1.0, 2.0], np.float32)
    proto = model("(float[2] x) => (float[2] y) { y = Abs(x) }")
    case = SimpleNamespace(model=proto, data_sets=[([x], [x])], rtol=1e-3, atol=1e-7)
    words = failure(case, backend_of("numpy"))
    assert words is not None
    assert words.startswith("VALUE")
    case.data_sets = [([x], [abs(x)])]
    assert failure(case, backend_of("numpy")) is None
