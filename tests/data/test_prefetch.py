"""Batches prefetched by a thread: order, errors, ends, states, and the threads' lifetime."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError
from backburn.data import batches, prefetch


def threads() -> int:
    return sum(thread.name == "backburn.prefetch" for thread in threading.enumerate())


def ended() -> bool:
    """Whether all threads end within 4 seconds: one waiting for space is woken at once."""
    gc.collect()  # collects iterators referenced by errors of other tests
    for _ in range(400):
        if not threads():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    assert ended()
    yield
    assert ended()


@pytest.mark.parametrize("size", [1, 2, 100])
def test_prefetching_keeps_batches_and_order(size: int) -> None:
    loader = batches(np.arange(50), batch_size=4, seed=0)
    ahead = prefetch(loader, size)
    sized: Any = ahead
    assert len(sized) == 13
    for epoch in range(3):
        loader.set_epoch(epoch)
        expected = [x.tolist() for (x,) in loader]
        ahead.set_epoch(epoch)
        assert [x.tolist() for (x,) in ahead] == expected


def test_data_without_a_length_or_epochs() -> None:
    ahead = prefetch(x for x in range(3))
    ahead.set_epoch(1)
    assert not hasattr(ahead, "__len__")
    assert list(ahead) == [0, 1, 2]
    assert list(ahead) == []
    assert ahead.describe() == {}
    assert list(prefetch([])) == []


def test_prefetch_describes_its_data() -> None:
    loader = batches(np.arange(5), batch_size=2)
    assert prefetch(loader).describe() == loader.describe()


def test_the_thread_prefetches_at_most_size_batches() -> None:
    taken: list[int] = []
    room = threading.Semaphore(0)

    def data() -> Iterator[int]:
        for i in range(10):
            taken.append(i)
            room.release()
            yield i

    iterator = iter(prefetch(data(), 3))
    assert taken == []
    assert next(iterator) == 0
    for _ in range(4):  # 0, which was returned, and three more
        assert room.acquire(timeout=10)
    time.sleep(0.05)
    assert taken == [0, 1, 2, 3]
    assert next(iterator) == 1
    assert room.acquire(timeout=10)
    assert list(iterator) == list(range(2, 10))


def broken(after: int, error: BaseException) -> Iterator[int]:
    yield from range(after)
    raise error


@pytest.mark.parametrize("error", [ValueError("no such file"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_error_is_raised_at_its_batch(after: int, error: BaseException) -> None:
    found = []
    iterator = iter(prefetch(broken(after, error), 2))

    def take() -> None:
        for batch in iterator:
            found.append(batch)

    with pytest.raises(type(error)) as caught:
        take()
    assert found == list(range(after))
    assert caught.value is error
    assert any(entry.name == "broken" for entry in caught.traceback)
    assert next(iterator, "end") == "end"


def test_an_error_of_iter_is_raised_at_once() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        iter(prefetch(Broken()))


def test_leaving_the_loop_ends_the_thread() -> None:
    """Also if the data never end."""

    def endless() -> Iterator[int]:
        i = 0
        while True:
            yield i
            i += 1

    for batch in prefetch(endless(), 2):
        if batch == 3:
            break
    assert ended()
    iterator = iter(prefetch(endless(), 2))
    assert next(iterator) == 0
    del iterator
    assert ended()


STUCK = """
import sys, threading
from backburn.data import prefetch

def stuck():
    yield 1
    threading.Event().wait()

iterator = iter(prefetch(stuck()))
print(next(iterator), flush=True)
"""


def test_data_that_never_come_do_not_keep_a_program_alive() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


INTERRUPTED = """
import os, signal, threading
from backburn.data import prefetch

def stuck():
    yield 1
    threading.Event().wait()

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
iterator = iter(prefetch(stuck()))
next(iterator)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    next(iterator)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_waiting_can_be_interrupted() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


FORKED = """
import os, warnings
import backburn as bb
from backburn.base.errors import BackburnError
from backburn.data import prefetch

warnings.simplefilter("ignore")
iterator = iter(prefetch(range(10), 1))
next(iterator)
import time
time.sleep(0.3)
if os.fork() == 0:
    try:
        for _ in iterator:
            pass
    except BackburnError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(list(iterator))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_missing_thread_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("prefetch: the thread is gone, as in a process that was forked")
    assert second == str(list(range(1, 10)))


def test_the_thread_inherits_the_contexts_of_the_loop() -> None:
    def data() -> Iterator[Any]:
        for _ in range(2):
            yield bb.asarray([1.0])

    with bb.use_backend("autodiff(numpy)"), bb.use_dtype("float64"):
        found = list(prefetch(data()))
    assert {(x.backend.spec, x.dtype.name) for x in found} == {("autodiff(numpy)", "float64")}
    assert {x.dtype.name for x in prefetch(data())} == {"float32"}


# ---- states ----


def test_the_state_counts_only_returned_batches() -> None:
    loader = batches(np.arange(20), batch_size=2, seed=1)
    plain = iter(loader)
    ahead: Any = iter(prefetch(loader, 4))
    assert ahead.get_state() == plain.get_state()
    for _ in loader:
        next(plain), next(ahead)
        assert ahead.get_state() == plain.get_state()
    assert next(ahead, None) is None
    assert ahead.get_state() == plain.get_state()


@pytest.mark.parametrize("done", [0, 1, 4, 10])
def test_resuming_from_a_state(done: int) -> None:
    loader = batches(np.arange(20), batch_size=2, seed=1)
    whole = [x.tolist() for (x,) in loader]
    ahead: Any = iter(prefetch(loader, 3))
    for _ in range(done):
        next(ahead)
    state = ahead.get_state()
    rest = [x.tolist() for (x,) in ahead]
    assert rest == whole[done:]
    ahead.set_state(state)  # after the end
    assert ahead.get_state() == state
    assert [x.tolist() for (x,) in ahead] == rest
    other: Any = iter(prefetch(loader, 3))
    next(other)
    other.set_state(state)  # prefetched batches are dropped
    assert [x.tolist() for (x,) in other] == rest


def test_iterators_without_a_state_have_none() -> None:
    assert not hasattr(iter(prefetch(range(3))), "get_state")


# ---- arguments ----


def test_wrong_arguments() -> None:
    wrong: Any = prefetch
    with pytest.raises(ArgumentError, match="prefetch: takes an iterable of batches, not 3"):
        wrong(3)
    with pytest.raises(ArgumentError, match="prefetch: size is an integer of at least 1, not 0"):
        prefetch([1], 0)
