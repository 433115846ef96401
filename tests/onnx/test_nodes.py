"""The node tests of the installed package: all on NumPy, every eighth on other backends.

``python -m tests.onnx.nodes`` runs all of them on any backend.
"""

import pytest

pytest.importorskip("onnx", reason="the node tests come with the package onnx, which is not installed")
from tests.onnx.nodes import EXCEPTIONS, cases, expected_reason, failure, surprises

PARTS = 12


def part(number: int, of: int) -> list[str]:
    return list(cases())[number::of]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PARTS))
def test_node_tests_pass_but_for_exceptions_with_reasons(number):
    wrong, _ = surprises(part(number, PARTS), "numpy")
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["autodiff(capture(numpy))", "torch"])
def test_node_tests_pass_on_other_backends(backend):
    if backend == "torch":
        pytest.importorskip("torch", reason="the example's backend needs PyTorch, which is not installed")
    wrong, _ = surprises(part(3, 16), backend)
    assert not wrong


def test_enough_node_tests_pass():
    passing = [name for name in cases() if expected_reason(name) is None]
    assert len(passing) >= 1640
    assert len(passing) / len(cases()) > 0.9


def test_each_exception_names_a_test():
    reasons = {expected_reason(name) for name in cases()} - {None}
    assert reasons == set(EXCEPTIONS.values())


def test_a_wrong_result_is_found(monkeypatch):
    case = cases()["test_abs"]
    (inputs, _outputs), *_ = case.data_sets
    monkeypatch.setattr(case, "data_sets", [(inputs, inputs)])
    from tests.onnx.nodes import backend_of

    words = failure("test_abs", backend_of("numpy"))
    assert words is not None
    assert words.startswith("VALUE")
