"""Sums in a fixed order: identical to one process, for lengths around the borders of pieces and processes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.launching import run_ranks

from backburn.backend import load_backend
from backburn.communicators import Communicator, Local, load_communicator
from backburn.communicators.sums import CHUNK, sum_in_order

pytestmark = pytest.mark.slow

PROGRAM = """
    import numpy as np
    from backburn.backend import load_backend
    from backburn.communicators import load_communicator, sums

    comm, k = load_communicator("mpi", check=True), load_backend("numpy")
    sums.CHUNK, sums.WHOLE = 4000, 400  # several pieces of small buffers
    for dtype in (np.float32, np.float64, np.int64):
        for length in (0, 1, comm.size - 1, 50, 101, 999, 1000, 1001, 5000):
            rows = [(np.random.default_rng(r).standard_normal(length) * 100).astype(dtype) for r in range(comm.size)]
            send = rows[comm.rank]
            before = send.copy()
            total = np.full(length, 7, dtype)
            sums.sum_in_order(comm, k, send, total, {steps})
            assert np.array_equal(send, before)
            for i, j in {steps}:
                rows[i] = rows[i] + rows[j]
            assert np.array_equal(total, rows[0]), (dtype, length)
"""


@pytest.mark.parametrize(
    ("ranks", "steps"), [(2, [(0, 1)]), (3, [(0, 1), (0, 2)]), (3, [(1, 2), (0, 1)]), (4, [(0, 1), (2, 3), (0, 2)])]
)
def test_additions_follow_the_given_order(ranks: int, steps: list[tuple[int, int]]) -> None:
    done = run_ranks(ranks, PROGRAM.replace("{steps}", repr(steps)))
    assert done.returncode == 0, done.stderr


def test_one_process_copies() -> None:
    comm: Communicator = load_communicator("local")
    send, total = np.arange(5.0), np.empty(5)
    sum_in_order(comm, load_backend("numpy"), send, total, [])
    assert total.tolist() == send.tolist()


def test_a_large_sum_moves_pieces() -> None:
    """Sums two full pieces and a rest, on the first of two simulated ranks."""

    class Pair(Local):
        size = 2
        moved: list[int] = []  # noqa: RUF012

        def all_to_all(self, send: object, receive: object) -> None:
            self.moved.append(sum(x.nbytes for x in send))  # type: ignore[attr-defined]
            receive[1][...] = 5  # type: ignore[index]

        def all_gather(self, send: object, receive: object) -> None:
            receive[1][...] = 9  # type: ignore[index]

    send = np.ones(2 * CHUNK // 4 + 10, np.float32)
    total = np.empty_like(send)
    sum_in_order(Pair(), load_backend("numpy"), send, total, [(0, 1)])
    assert Pair.moved == [CHUNK, CHUNK, 40]
    assert set(total[: CHUNK // 8]) == {6.0}
    assert set(total[CHUNK // 8 : CHUNK // 4]) == {9.0}
