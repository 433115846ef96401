"""``Profile``: what it counts and times, and that its results are those of the wrapped backend."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.backend import load_backend
from backburn.conformance import check_backend
from backburn.decorators import Profile
from backburn_numpy import NumpyBackend

CALLS = {"add": 1, "broadcast_to": 1, "full": 1, "mul": 3, "reshape": 1, "sum": 1}


class Waiting(NumpyBackend):
    """An asynchronous backend: results are complete after :meth:`synchronize`, half a second later."""

    spec = "waiting"
    clock = 0.0

    def exp(self, x: Any) -> Any:
        Waiting.clock += 0.25
        return np.exp(x)

    def synchronize(self) -> None:
        Waiting.clock += 0.5


@pytest.fixture
def profile() -> Iterator[Profile]:
    found = load_backend("profile(numpy)")
    assert isinstance(found, Profile)
    found.reset()
    yield found
    found.reset()


def calls(profile: Profile) -> dict[str, int]:
    return {name: cost.calls for name, cost in profile.costs.items()}


def test_the_operations_of_a_reverse_pass_are_counted(profile: Profile) -> None:
    x = bb.asarray([1.0, 2.0], backend="autodiff(profile(numpy))").require_grad()
    profile.reset()
    gradient = x.grad((x * x).sum().backward())
    assert calls(profile) == CALLS
    assert gradient is not None
    assert gradient.tolist() == [2.0, 4.0]
    profile.reset()
    assert calls(profile) == {}


def test_second_derivatives_pass_through_one_profile(profile: Profile) -> None:
    with bb.use_backend("autodiff(autodiff(profile(numpy)))"):
        assert bb.hessian(lambda x: (x**3.0).sum())(bb.asarray([1.0, 2.0])).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    assert calls(profile)["pow"] >= 3


def test_the_time_of_an_operation_ends_with_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backburn.decorators.profile.time.perf_counter", lambda: Waiting.clock)
    k = Profile(Waiting())
    x = k.ones((3,), dtype=k.float_dtype)
    k.reset()
    k.exp(k.exp(x))
    assert k.costs["exp"].seconds == 1.5
    k.neg(x)
    assert list(k.costs) == ["exp", "neg"], "sorted by time, descending"
    assert k.table().splitlines() == [
        "operation        calls   total ms    mean us    share",
        "exp                  2   1500.000   750000.0    75.0%",
        "neg                  1    500.000   500000.0    25.0%",
    ]
    assert k.table(limit=1).splitlines()[-1] == "and 1 more; all operations: 2000.000 ms"


def test_a_formula_is_one_operation(profile: Profile) -> None:
    x = bb.full(30_000, 2.0, backend="autodiff(profile(numpy))").require_grad()
    profile.reset()
    gradient = x.grad((1.0 / x).sum().backward())
    assert gradient is not None
    assert np.allclose(gradient.numpy(), -0.25)
    assert calls(profile)["gradient of div"] == 1
    assert "neg" not in calls(profile), "a step of the formula"


def test_a_failing_operation_is_not_counted(profile: Profile) -> None:
    x = profile.ones((3,), dtype=profile.float_dtype)
    with pytest.raises(ValueError, match="broadcast"):
        profile.add(x, profile.ones((4,), dtype=profile.float_dtype))
    assert calls(profile) == {"ones": 2}


def test_calls_of_concurrent_threads_are_all_counted(profile: Profile) -> None:
    x = profile.ones((3,), dtype=profile.float_dtype)

    def run() -> None:
        for _ in range(500):
            profile.neg(x)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls(profile)["neg"] == 2000


def test_an_empty_table() -> None:
    assert Profile(NumpyBackend()).table() == "operation        calls   total ms    mean us    share"


@pytest.mark.parametrize("spec", ["profile(numpy)", "autodiff(profile(numpy))"])
def test_a_profile_is_a_backend_like_any_other(spec: str) -> None:
    operations = ["add", "softmax", "matmul", "topk", "dropout", "quantized_matmul", "max_pool", "adam_step"]
    report = check_backend(spec, quick=True, ops=operations)
    assert report.ok, report


def test_a_profile_around_a_profile(profile: Profile) -> None:
    outer = load_backend("profile(profile(numpy))")
    assert isinstance(outer, Profile)
    outer.neg(outer.ones((2,), dtype=outer.float_dtype))
    assert calls(outer) == calls(profile) == {"ones": 1, "neg": 1}


@pytest.mark.parametrize("spec", ["profile(autodiff(numpy))", "autodiff(profile(autodiff(numpy)))"])
def test_tensors_can_be_moved_from_a_profile_around_autodiff(spec: str) -> None:
    x = bb.asarray([1.0, 2.0], backend=spec)
    for target in ("numpy", "autodiff(numpy)", "profile(numpy)"):
        assert (x.to(target) * 2.0).tolist() == [2.0, 4.0]
        assert x.to(target).backend.spec == target


def test_a_fused_formula_is_one_call() -> None:
    def square_plus(k: Any, x: Any, y: Any) -> Any:
        return k.add(k.mul(x, x), y)

    k = Profile(NumpyBackend())
    x = k.from_numpy(np.array([1.0, 2.0], np.float32))
    k.reset()
    assert k.fuse(square_plus, x, x).tolist() == [2.0, 6.0]
    assert calls(k) == {"square_plus": 1}


def test_a_formula_without_a_name_is_one_pass() -> None:
    k: Any = Profile(NumpyBackend())
    assert k.fuse(partial(lambda factor, k, x: k.mul(x, factor), 2.0), np.ones(2)).tolist() == [2.0, 2.0]
    assert list(k.costs) == ["fuse"]
