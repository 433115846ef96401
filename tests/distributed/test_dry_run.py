"""Dry runs: bytes compared with formulas for each kind of parallelism and with real processes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.launching import run_ranks

import backburn as bb
from backburn import distributed, nn, optim
from backburn.base.errors import ArgumentError
from backburn.communicators.count import Link
from backburn.distributed import dry_run, plans
from backburn.nn.functional import cross_entropy

SIZES = ((16, 512), (512, 512), (512, 64))
#: The bytes of all gradients: as many as of the parameters.
G = sum((inputs + 1) * outputs * 4 for inputs, outputs in SIZES)


def mlp(plan: Any, rows: int) -> Any:
    """A program that trains an MLP on ``rows`` examples per step."""

    def program(mesh: Any) -> Any:
        with bb.use_backend(mesh.backend()):
            (a, b), (_, c), (_, d) = SIZES
            model = nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))
            distributed.place(model, plan)
            optimizer = optim.AdamW(1e-3)

        def step() -> None:
            with bb.use_backend(mesh.backend()):
                x = distributed.place(bb.zeros((rows, a)), {"dp": 0})
                y = distributed.place(bb.zeros((rows,), dtype="int64"), {"dp": 0})
                optimizer.step(model, cross_entropy(model(x), y).backward())

        return model, step

    return program


@pytest.mark.parametrize("processes", [2, 4, 64])
def test_bytes_of_data_parallelism(processes: int) -> None:
    found = dry_run(mlp(plans.replicated(), 64 * processes), dp=processes)
    assert found.sent == pytest.approx(2 * (processes - 1) / processes * G, rel=0.05)
    assert (found.parameters, found.gradients, found.state) == (G, G, 2 * G)


@pytest.mark.parametrize("processes", [2, 4, 64])
def test_bytes_of_full_sharding(processes: int) -> None:
    found = dry_run(mlp(plans.sharded(), 512 * processes), dp=processes)
    assert found.sent == pytest.approx(3 * (processes - 1) / processes * G, rel=0.05)
    assert found.parameters == pytest.approx(G / processes, rel=0.01)
    assert found.state == pytest.approx(2 * G / processes, rel=0.01)
    assert found.parameters + found.state <= 0.27 * 3 * G or processes < 4


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("blocks", [1, 3])
def test_bytes_of_tensor_parallelism(blocks: int, processes: int) -> None:
    """Two all-reduces of the activations per block and pass."""
    examples, length, width = 4, 32, 64

    def program(mesh: Any) -> Any:
        with bb.use_backend(mesh.backend()):
            layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0) for _ in range(blocks)]
            model = distributed.place(nn.Sequential(*layers), plans.transformer(tp="tp"))
            optimizer = optim.SGD(0.1)

        def step() -> None:
            with bb.use_backend(mesh.backend()):
                x = bb.zeros((examples, length, width)).require_grad()
                gradients = (model(x) ** 2).mean().backward()
                x.grad(gradients).sum().item()  # type: ignore[union-attr]
                optimizer.step(model, gradients)

        return model, step

    found = dry_run(program, tp=processes)
    activations = examples * length * width * 4
    assert found.sent == pytest.approx(4 * blocks * 2 * (processes - 1) / processes * activations, rel=0.05)


def test_hundreds_of_processes_are_simulated_in_one() -> None:
    near, far = Link(1e-6, 1e10), Link(1e-5, 1e9)
    few = dry_run(mlp(plans.sharded(), 2048), dp=8, per_node=8, near=near, far=far, rate=1e12)
    many = dry_run(mlp(plans.sharded(), 2048), dp=512, per_node=8, near=near, far=far, rate=1e12)
    assert many.processes == 512
    assert many.parameters < few.parameters
    assert many.sent == pytest.approx(few.sent * (511 / 512) / (7 / 8), rel=0.02)
    assert many.compute is not None
    assert few.compute == pytest.approx(64 * many.compute, rel=0.01)
    assert many.communication > few.communication
    assert many.seconds == many.compute + many.communication
    assert "one of 512 processes, for each step" in str(many)


def test_several_shards_per_process() -> None:
    found = dry_run(mlp(plans.replicated(), 256), dp=8, processes=2)
    assert found.processes == 2
    assert found.sent == pytest.approx(G, rel=0.05)


def test_cores_are_shared() -> None:
    one = dry_run(mlp(plans.replicated(), 256), dp=4, rate=1e9)
    four = dry_run(mlp(plans.replicated(), 256), dp=4, rate=1e9, cores=2)
    assert one.compute is not None
    assert four.compute == pytest.approx(2 * one.compute)


def test_a_measured_step_has_a_time() -> None:
    found = dry_run(mlp(plans.replicated(), 8), dp=2, measure=True)
    assert found.compute is not None
    assert found.compute > 0
    assert dry_run(mlp(plans.replicated(), 8), dp=2).seconds is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "takes the axes of a mesh"),
        ({"dp": 2, "rate": 0.0}, "rate is a positive number"),
        ({"dp": 2, "rate": 1.0, "measure": True}, "instead of measure"),
        ({"dp": 2, "processes": 3}, "processes cannot"),
        ({"dp": 2, "rank": 2}, "no rank 2 of 2"),
    ],
)
def test_invalid_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        dry_run(mlp(plans.replicated(), 8), **options)


REAL = """
from backburn import distributed
from backburn.distributed import plans
from tests.distributed.test_dry_run import mlp

mesh = distributed.mesh(dp={ranks})
comm, sent = mesh.communicator, 0

def counted(name):
    real = getattr(type(comm), name)
    def call(self, send, receive):
        global sent
        rows = [send] * self.size if name == "all_gather" else send
        sent += sum(b.nbytes for r, b in enumerate(rows) if r != self.rank)
        return real(self, send, receive)
    setattr(type(comm), name, call)

for name in ("all_gather", "all_to_all", "start_all_to_all"):
    counted(name)
_, step = mlp(plans.{plan}(), {rows})(mesh)
step(); step()
sent = 0
step()
mesh.print(sent)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("plan", ["replicated", "sharded"])
def test_bytes_are_those_of_real_processes(plan: str, ranks: int) -> None:
    rows = 256 * ranks
    done = run_ranks(ranks, REAL.format(ranks=ranks, plan=plan, rows=rows))
    assert done.returncode == 0, done.stderr
    found = dry_run(mlp(getattr(plans, plan)(), rows), dp=ranks)
    assert found.sent == pytest.approx(int(done.stdout.splitlines()[-1]), rel=0.05)


MEMORY = """
import gc, tracemalloc
import backburn as bb
from backburn import distributed
from backburn.distributed import plans
from backburn_numpy.runtime import memory
from tests.distributed.test_dry_run import mlp

memory.LIMIT, memory._HUGE_PAGES = 0, None  # no reuse: NumPy allocates everything, and tracemalloc sees it
mesh = distributed.mesh(dp={ranks})
for plan, rows in ((plans.{plan}(), {ranks}), (plans.{plan}(), {rows})):
    gc.collect()
    tracemalloc.start()
    _, step = mlp(plan, rows)(mesh)
    for _ in range(3):
        step()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
mesh.print(found)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "ranks"), [("state", 2), ("sharded", 4)])
def test_memory_is_that_of_real_processes(plan: str, ranks: int) -> None:
    rows = 1024 * ranks
    done = run_ranks(ranks, MEMORY.format(ranks=ranks, plan=plan, rows=rows))
    assert done.returncode == 0, done.stderr
    found = dry_run(mlp(getattr(plans, plan)(), rows), dp=ranks)
    assert found.peak == pytest.approx(int(done.stdout.splitlines()[-1]), rel=0.05)
