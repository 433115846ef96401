"""If restoring a state fails midway, the trainer is unchanged and continues as if nothing had happened."""

from __future__ import annotations

from typing import Any

import pytest
from tools.fuzz_runs import same, trainer

from backburn import nn, optim, train
from backburn.base.errors import RunFolderError


def trained(epochs: int) -> Any:
    made = trainer()
    for _ in range(epochs):
        made.run_epoch()
    return made


@pytest.mark.parametrize(
    "part",
    ["model", "optimizer", "average", "random", "evaluation", "precision", "rates", "callbacks", "sums", "logged",
     "seconds", "history", "layout", "lowered", "skipped", "epoch"],
)  # fmt: skip
@pytest.mark.parametrize("epochs", [0, 2])
def test_a_state_with_a_bad_part_changes_nothing(part: str, epochs: int) -> None:
    """For any part, also before the first step."""
    state = trained(3).state()
    broken: dict[str, Any] = {"rates": {"no such rate": {}}, "callbacks": {"EarlyStopping": {"best": "x"}}}
    state[part] = broken.get(part, {"x": object()})
    tried, untouched = trained(epochs), trained(epochs)
    before = tried.state()
    with pytest.raises(Exception, match=r"\S"):
        tried.load_state(state)
    assert same(tried.state(), before)
    rows = tried.run_epoch(), untouched.run_epoch()
    assert rows[0]["loss"] == rows[1]["loss"]
    assert same(tried.state()["model"], untouched.state()["model"])


@pytest.mark.parametrize(
    "owner", [nn.Module, optim.Adam, optim.Average, optim.schedules.ReduceOnPlateau, train.EarlyStopping, train.Trainer]
)
def test_an_interrupted_restore_changes_nothing(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C after loading any part."""
    state, tried = trained(3).state(), trained(1)
    before = tried.state()
    name = "_lower" if owner is train.Trainer else "load_state_dict"
    original, calls = getattr(owner, name), []

    def interrupted(self: Any, *given: Any, **options: Any) -> None:
        original(self, *given, **options)
        calls.append(given)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)
    state["lowered"] = 0.5
    with pytest.raises(KeyboardInterrupt):
        tried.load_state(state)
    assert same(tried.state(), before)
    tried.load_state(state)
    assert same(tried.state()["model"], state["model"])
    assert tried.lowered == 0.5


def test_a_state_of_another_run_changes_nothing() -> None:
    state, tried = trained(1).state(), trained(2)
    before = tried.state()
    state["about"]["optimizer"] = "SGD"
    with pytest.raises(RunFolderError, match="optimizer was SGD"):
        tried.load_state(state)
    assert same(tried.state(), before)


def test_different_states_are_detected() -> None:
    """The comparison of these tests detects differences."""
    assert not same(trained(1).state(), trained(2).state())
    assert not same({"a": 1}, {"a": 1.5})
    assert not same([1], [1, 2])
