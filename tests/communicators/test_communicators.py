"""The collectives, in one process and on several MPI ranks, against their definitions."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests.helpers.launching import run_ranks

from backburn.backend import load_backend
from backburn.base.errors import ArgumentError, SpecError, Unsupported
from backburn.communicators import Communicator, Local, launched, load_communicator

COLLECTIVES = """
    import warnings
    import numpy as np
    from backburn.backend import load_backend
    from backburn.base.dtypes import DTYPES
    from backburn.communicators import Communicator, load_communicator

    comm = load_communicator("mpi")
    assert load_communicator("mpi") is comm and isinstance(comm, Communicator)
    rank, size = comm.rank, comm.size
    k = load_backend("numpy")

    def mine(dtype, shape, of):
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 3 + of
        return (values % 2 == of % 2).astype(dtype.dtype) if dtype.kind == "bool" else values.astype(dtype.dtype)

    for dtype in DTYPES.values():
        if dtype.kind == "quantized":
            continue
        # Parts of different lengths, one of them empty, and scalars.
        for shapes in ([(n, 2) for n in range(size)], [()] * size):
            receive = [comm.empty(k, shape, dtype) for shape in shapes]
            comm.all_gather(comm.to_buffer(k, k.from_numpy(mine(dtype, shapes[rank], rank))), receive)
            for r, shape in enumerate(shapes):
                assert np.array_equal(receive[r], mine(dtype, shape, r)), (dtype, r)
        # From rank a to rank b: a + 2 b numbers.
        send = [mine(dtype, (rank + 2 * r,), 10 * rank + r) for r in range(size)]
        receive = [comm.empty(k, (r + 2 * rank,), dtype) for r in range(size)]
        pending = comm.start_all_to_all(send, receive)
        pending.wait()
        for r in range(size):
            assert np.array_equal(receive[r], mine(dtype, (r + 2 * rank,), 10 * r + rank)), (dtype, r)
        for root in range(size):
            buffer = mine(dtype, (5,), rank)
            comm.broadcast(buffer, root)
            assert np.array_equal(buffer, mine(dtype, (5,), root))
        buffer = mine(dtype, (5,), rank)
        if comm.can_reduce(buffer):
            comm.all_reduce(buffer)
            assert np.array_equal(buffer, sum(mine(dtype, (5,), r) for r in range(size)))
        else:
            assert dtype.name in ("float16", "bfloat16", "bool")
    assert comm.gather_objects({"rank": rank}) == [{"rank": r} for r in range(size)]
    # Two exchanges under way at once do not mix.
    receive = [[np.empty(3) for _ in range(size)] for _ in range(2)]
    started = [comm.start_all_to_all([np.full(3, 10.0 * rank + i)] * size, receive[i]) for i in range(2)]
    for pending in reversed(started):
        pending.wait()
    assert [[b[0] for b in row] for row in receive] == [[10.0 * r + i for r in range(size)] for i in range(2)]
    # Odd and even ranks.
    half = comm.split([r % 2 for r in range(size)])
    assert half.gather_objects(rank) == [r for r in range(size) if r % 2 == rank % 2]
    # What is not a number warns of nothing.
    with warnings.catch_warnings(action="error"):
        total = np.empty(2)
        comm.add(np.array([np.inf, 1e308]), np.array([-np.inf, 1e308]), total)
    assert np.isnan(total[0]) and np.isinf(total[1])
    comm.barrier()
    print("good\\n", end="", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_collectives_of_mpi(ranks: int) -> None:
    done = run_ranks(ranks, COLLECTIVES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["good"] * ranks


def test_local_is_one_process() -> None:
    comm = load_communicator("local")
    assert isinstance(comm, Communicator)
    assert comm.split([0]) is comm
    receive = [np.empty(2)]
    comm.start_all_to_all([np.array([1.0, 2.0])], receive).wait()
    assert receive[0].tolist() == [1.0, 2.0]
    buffer = np.array([3.0])
    comm.all_reduce(buffer)
    comm.broadcast(buffer, 0)
    comm.barrier()
    assert buffer.tolist() == [3.0]
    comm.add(np.array([np.inf]), np.array([-np.inf]), buffer)  # warnings are errors
    assert np.isnan(buffer[0])
    with pytest.raises(ArgumentError, match="all_gather: 2 buffers for 1 processes"):
        comm.all_gather(buffer, [buffer, buffer])
    with pytest.raises(ArgumentError, match="no rank 1 among 1"):
        comm.broadcast(buffer, 1)


@pytest.mark.parametrize("spec", ["numpy", "profile(numpy)"])
def test_buffers_hold_the_values_of_primitives(spec: str) -> None:
    k, comm = load_backend(spec), Local()
    x = k.permute_dims(k.from_numpy(np.arange(6.0).reshape(2, 3)), (1, 0))
    buffer = comm.to_buffer(k, x, own=True)
    assert buffer.flags.c_contiguous
    buffer += 1
    assert k.to_numpy(x).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert k.to_numpy(comm.from_buffer(k, buffer)).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert comm.to_buffer(k, k.sum(x, (0, 1), False)).shape == ()


def test_names_of_communicators() -> None:
    with pytest.raises(SpecError, match=r"no communicator is called 'mpl'\. Did you mean 'mpi'"):
        load_communicator("mpl")
    with pytest.raises(SpecError, match="'local' does not take speed=1"):
        load_communicator("local", speed=1)


def test_mpi_does_not_add_float16() -> None:
    program = """
        import numpy as np
        from backburn.communicators import load_communicator
        try:
            load_communicator("mpi").all_reduce(np.ones(2, np.float16))
        except NotImplementedError as error:
            print(error)
    """
    done = run_ranks(1, program)
    assert done.stdout == "all_reduce: MPI does not add float16; sums in a fixed order do\n", done.stderr
    assert issubclass(Unsupported, NotImplementedError)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8", "PMIX_RANK": "0"}, (0, 8)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, (3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # a batch script is itself one process
    ],
)
def test_ranks_are_known_without_mpi(environment: dict[str, str], expected: tuple[int, int] | None) -> None:
    assert launched(environment) == expected


def test_ranks_know_whether_they_were_launched() -> None:
    show = "print(f'{launched()} {\"mpi4py\" in sys.modules}')"
    program = f"import sys; from backburn.communicators import launched; {show}"
    words = run_ranks(2, program).stdout
    assert words.count("(0, 2) False") == words.count("(1, 2) False") == 1
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert alone.stdout == "None False\n"
