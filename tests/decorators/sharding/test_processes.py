"""Shards in several processes: programs on several ranks, bitwise compared with one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.launching import run_ranks
from tests.helpers.mesh_training import PLANS, TENSOR, train

from backburn.backend import load_backend
from backburn.base.errors import SpecError
from backburn.communicators import Local
from backburn.decorators.sharding import Sharded
from backburn.decorators.sharding.processes import share
from backburn_numpy import NumpyBackend

pytestmark = pytest.mark.slow


def lines(ranks: int, program: str, limit: float = 120) -> list[str]:
    """The output lines of all ranks of a program, which must succeed."""
    found = run_ranks(ranks, program, limit)
    assert found.returncode == 0, found.stderr
    return found.stdout.split("\n")[:-1]


# ---- the shards of each process ----


class Place(Local):
    """The communicator of one of several simulated processes."""

    def __init__(self, rank: int, size: int, name: str = "world") -> None:
        self.rank, self.size, self.name = rank, size, name

    def split(self, colors: Any) -> Any:
        mine = [r for r, color in enumerate(colors) if color == colors[self.rank]]
        return Place(mine.index(self.rank), len(mine), f"{self.name}[{colors[self.rank]}]")


@pytest.mark.parametrize(
    ("mesh", "size", "shares"),
    [
        ({"dp": 4}, 2, [[(0, 1)], [(2, 3)]]),
        ({"dp": 2, "tp": 2}, 4, [[(0,), (0,)], [(0,), (1,)], [(1,), (0,)], [(1,), (1,)]]),
        ({"dp": 3, "tp": 2}, 2, [[(0, 1, 2), (0,)], [(0, 1, 2), (1,)]]),
        ({"dp": 4, "tp": 3}, 6, [[(2 * (r // 3), 2 * (r // 3) + 1), (r % 3,)] for r in range(6)]),
    ],
)
def test_processes_are_assigned_from_the_outermost_level(mesh: Any, size: int, shares: Any) -> None:
    for rank in range(size):
        k: Any = NumpyBackend()
        for axis, shards in reversed(mesh.items()):
            k = Sharded(k, comm=Place(rank, size) if axis == next(iter(mesh)) else None, **{axis: shards})
        share(k)
        levels = [k, k.below] if k.below else [k]
        assert [tuple(level.own) for level in levels] == shares[rank]
        assert [level.communicator.size for level in levels] == [
            n // len(o) for n, o in zip(mesh.values(), shares[rank], strict=True)
        ]


def test_a_mesh_that_the_processes_cannot_share_is_an_error() -> None:
    inner = Sharded(NumpyBackend(), tp=2)
    k: Any = Sharded(inner, dp=4, comm=Place(0, 3))
    with pytest.raises(SpecError, match="3 processes cannot share the 8 shards of dp=4, tp=2; start 1, 2, 4 or 8"):
        k.zeros((4, 2), k.float_dtype) if k.own else None


def test_a_level_in_two_specs_has_processes_in_each() -> None:
    shared: Any = load_backend("sharded(numpy, tp=2)")
    assert Sharded(shared, dp=2, comm=Place(1, 2)).below is not shared
    assert tuple(shared.own) == (0, 1)
    inner = Sharded(NumpyBackend(), tp=2, comm=Place(1, 2))
    k: Any = Sharded(inner, dp=2)
    assert (tuple(k.own), tuple(k.below.own), tuple(inner.own)) == ((1,), (0, 1), (1,))
    assert k.wrapped is k.below is not inner


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sharded(numpy, dp=2, check=1)", "check is true or false, not 1"),
        ("sharded(numpy, dp=2, deterministic=no)", "deterministic is true or false, not 'no'"),
        ("sharded(numpy, dp=2, timeout=0)", "timeout is a number of seconds, not 0"),
        ("sharded(sharded(numpy, tp=2, comm=mpi), dp=2, comm=local)", "comm is for all levels"),
    ],
)
def test_invalid_options_of_a_mesh(spec: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_backend(spec)


# ---- collectives ----

COLLECTIVES = """
    import numpy as np
    from backburn.backend import load_backend
    from backburn.base.dtypes import bfloat16, bool_, complex64, float16, float32, int64
    from backburn.decorators.sharding import Sharded, placement_of, place_primitive
    from backburn_numpy import NumpyBackend

    rng = np.random.default_rng(0)

    def cuts(length, count):
        ends = sorted(rng.integers(0, length + 1, count - 1))
        return tuple(int(n) for n in np.diff([0, *ends, length]))

    def values(shape, dtype):
        found = rng.normal(size=shape) * 100
        return (found * (1 - 2j) if dtype.kind == "complex" else found).astype(dtype.dtype)

    k, local = Sharded(NumpyBackend(), dp=6, comm="mpi"), Sharded(NumpyBackend(), dp=6)
    done = 0
    for dtype in (float32, float16, bfloat16, complex64, int64, bool_):
        for shape in ((7, 5), (1, 9, 4), (60, 200), (0, 3), (12,)):
            x = values(shape, dtype)
            for axis in range(len(shape)):
                first, second = cuts(shape[axis], 6), cuts(shape[axis], 6)
                other = (axis + 1) % len(shape)
                third = cuts(shape[other], 6)
                cut = k.cut(k.from_numpy(x), axis, first)
                for found in (cut, k.cut(cut, axis, second), k.cut(cut, other, third)):
                    assert k.to_numpy(found).tobytes() == x.tobytes(), (dtype, shape)
                    done += 1
                if dtype.kind == "bool":
                    continue
                # Sums in all bits, and their parts.
                rows = values((6, *shape), dtype)
                sums = [b.sum(b.cut(b.from_numpy(rows), 0), (0,), False) for b in (k, local)]
                wanted = local.to_numpy(sums[1])
                part = k.cut(sums[0], axis, first)
                assert part.axis == axis
                assert k.to_numpy(part).tobytes() == wanted.tobytes(), (dtype, shape)
                assert k.to_numpy(sums[0]).tobytes() == wanted.tobytes(), (dtype, shape)
                done += 2
    free = Sharded(NumpyBackend(), dp=6, comm="mpi", deterministic=False)
    for dtype in (float32, complex64):
        rows = values((6, 50), dtype)
        total = free.sum(free.cut(free.from_numpy(rows), 0), (0,), False)
        np.testing.assert_allclose(free.to_numpy(total), rows.sum(0), rtol=1e-5, atol=1e-3)
    print(f"{done}\\n", end="")
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_of_uneven_parts_equal_one_process(ranks: int) -> None:
    """Six shards on two or three processes: the shards of a process are no subtree of the sums."""
    (done, *others) = lines(ranks, COLLECTIVES)
    assert int(done) > 150
    assert others == [done] * (ranks - 1)


NESTED = """
    import numpy as np
    from backburn.backend import load_backend
    from backburn.decorators.sharding import place_primitive, placement_of

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 8)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)
    words = []
    for spec in ("sharded(sharded(numpy, tp=2{}), dp=2)", "sharded(sharded(numpy, tp=2), dp=4{})"):
        k, local = load_backend(spec.format(", comm=mpi")), load_backend(spec.format(""))
        for left in ({"dp": 0, "tp": 1}, {"dp": 0, "tp": 0}, {"dp": 1, "tp": 0}, {"dp": 1, "tp": 1}, {"tp": 1}):
            for right in ({}, {"tp": 0}, {"tp": 1}, {"dp": 0, "tp": 1}, {"dp": 1}):
                found = []
                for b in (k, local):
                    a, c = place_primitive(b, b.from_numpy(x), left), place_primitive(b, b.from_numpy(y), right)
                    product = b.matmul(a, c)
                    moved = place_primitive(b, product, {"dp": 1})
                    back = place_primitive(b, moved, {"dp": 0, "tp": None})
                    found.append((
                        placement_of(b, product), placement_of(b, moved), b.to_numpy(product).tobytes(),
                        b.to_numpy(moved).tobytes(), b.to_numpy(b.sum(b.mul(back, back), (0, 1), False)).tobytes(),
                    ))
                assert found[0] == found[1], (spec, left, right, found)
                words.append(found[0][0])
    print(f"{len(words)}\\n", end="")
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_nested_levels_exchange_inner_parts(ranks: int) -> None:
    assert lines(ranks, NESTED) == ["50"] * ranks


# ---- errors ----

ERRORS = """
    import numpy as np
    import backburn as bb
    from backburn.backend import load_backend
    from backburn.base.dtypes import float32

    k = load_backend("sharded(numpy, dp=2, comm=mpi, on_fallback=allow)")
    rank = k.communicator.rank
    matrices = np.stack([np.eye(2)] * 4).astype(np.float32)
    singular = np.concatenate([matrices[:3], np.zeros((1, 2, 2), np.float32)])
    table, labels = k.from_numpy(np.ones((3, 2), np.float32)), np.array([0, 1, 2, 3])
    logits = k.cut(k.from_numpy(np.ones((4, 3), np.float32)), 0)

    scheme = bb.QuantizedDType("int8", float32, "symmetric", "block", block=2)

    def cut(array):
        return k.cut(k.from_numpy(array), 0)

    calls = {
        "take": lambda: k.take(table, cut(labels), 0),
        "embedding": lambda: k.embedding(table, cut(labels)),
        "take_along_axis": lambda: k.take_along_axis(logits, cut(labels[:, None]), 1),
        "label_cross_entropy": lambda: k.label_cross_entropy(logits, cut(labels), 1),
        "inv": lambda: k.inv(cut(singular)),
        "solve": lambda: k.solve(cut(singular), cut(matrices)),
        "cholesky": lambda: k.cholesky(cut(-singular)),
        "quantize": lambda: k.quantize(cut(np.array([1.0, 2.0, 3.0, np.nan], np.float32)), scheme),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}\\n", end="")
        else:
            print(f"{name}: no error\\n", end="")
        # Both ranks are in step.
        total = k.to_numpy(k.sum(k.mul(logits, 1.0 + len(name)), (0, 1), False))
        assert total == 12 * (1 + len(name))
    with bb.use_backend("autodiff(sharded(numpy, dp=2, comm=mpi, inputs=first))"):
        try:
            bb.nn.functional.cross_entropy(bb.ones((4, 3)), bb.asarray(labels))
        except bb.errors.OutOfRangeError as error:
            print(f"cross_entropy: {error}\\n", end="")
"""


def test_errors_for_values_are_raised_by_all_processes() -> None:
    """The last entry, held by the second process, is out of range or singular."""
    found = lines(2, ERRORS)
    names = [line.partition(":")[0] for line in found]
    assert len(found) == 18
    assert all(names.count(name) == 2 for name in names)
    assert all(found.count(line) == 2 for line in found), found
    assert not [line for line in found if "no error" in line]
    assert any("3" in line and line.startswith("cross_entropy: cross_entropy: the label 3 is none") for line in found)


# ---- training ----

DIGESTS = """
    from tests.helpers.mesh_training import PLANS, train

    for spec, parameters, data in {plans}:
        print(f"{{train(spec.format(', comm=mpi'), parameters, data)[0]}}\\n", end="")
"""


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_digests_of_a_mesh_of_eight_do_not_depend_on_the_processes(ranks: int) -> None:
    plan: Any = ("sharded(numpy, dp=8{})", {}, {"dp": 0})
    expected, losses = train(plan[0].format(""), *plan[1:])
    assert losses[-1] < losses[0]
    assert lines(ranks, DIGESTS.format(plans=[plan])) == [expected] * ranks


def test_digests_of_plans_on_four_processes() -> None:
    plans = list(PLANS.values())
    expected = [train(spec.format(""), parameters, data)[0] for spec, parameters, data in plans]
    assert len(set(expected)) >= 3  # products of different parts round differently
    assert sorted(lines(4, DIGESTS.format(plans=plans))) == sorted(expected * 4)


def test_digests_of_a_mesh_that_is_no_power_of_two() -> None:
    plan = ("sharded(sharded(numpy, tp=2), dp=3{})", TENSOR, {"dp": 0})
    expected, _ = train(plan[0].format(""), *plan[1:])
    assert lines(2, DIGESTS.format(plans=[plan])) == [expected] * 2


TRANSFORMS = """
    import numpy as np
    import backburn as bb
    from backburn import nn, optim
    from backburn.distributed import place

    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    matrix = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)

    def step(state, x, y):
        model, optimizer = state
        loss = ((model(x) - y) ** 2).mean()
        optimizer.step(model, loss.backward())
        return state, loss

    def results(spec):
        with bb.use_backend(spec):
            x, y = place(bb.asarray(rows), {"dp": 0}), bb.asarray(matrix)
            function = lambda t: ((t @ y).softmax(axis=1) * (t @ y)).logsumexp(axis=0).sum()
            found = {
                "grad": bb.grad(function)(x), "hessian": bb.hessian(function)(x),
                "vmap": bb.vmap(lambda row: (row @ y).sum())(x), "jvp": bb.jvp(function, (x,), (x,))[1],
                "checkpoint": bb.grad(bb.checkpoint(function))(x), "nonzero": bb.nonzero(x > 0)[0],
                "unique": bb.unique_values(x.round()), "branch": bb.asarray(1.0 if x.sum() > 0 else 2.0),
            }
            found = {name: value.numpy() for name, value in found.items()}
            bb.random.seed(0)
            state = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 4)), optim.AdamW(0.05)
            run = bb.capture(step) if "capture" in spec else step
            targets, losses = bb.ones((5, 4)), []
            for _ in range(6):
                state, loss = run(state, x, targets)
                losses.append(loss.item())
            assert "capture" not in spec or "replayed" in repr(run)
            return {**found, "losses": np.array(losses)}

    plain = results("autodiff(numpy)")
    for spec in ("autodiff({})", "autodiff(capture({}))"):
        level = "sharded(numpy, dp=2, on_fallback=allow{})"
        expected, found = (results(spec.format(level.format(comm))) for comm in ("", ", comm=mpi"))
        for name, value in found.items():
            assert value.shape == expected[name].shape, name
            assert value.tobytes() == expected[name].tobytes(), name
            np.testing.assert_allclose(value, plain[name], rtol=1e-3, atol=1e-4, err_msg=name)
    print("same\\n", end="")
"""


def test_transforms_and_replays_equal_one_process() -> None:
    assert lines(2, TRANSFORMS) == ["same"] * 2


# ---- the contract ----

CONFORMANCE = """
    from backburn.conformance import check_backend

    for spec in {specs}:
        report = check_backend(spec, quick=True)
        print(f"{{len(report.results)}} {{[f.id for f in report.failures]}}\\n", end="")
"""


def test_some_checks_on_two_ranks() -> None:
    """Inputs as addends, and nested levels."""
    inner = "sharded(numpy, tp=2, on_fallback=allow, inputs=last)"
    specs = [
        "sharded(numpy, dp=2, on_fallback=allow, inputs=addends, comm=mpi)",
        f"sharded({inner}, dp=2, on_fallback=allow, inputs=first, comm=mpi)",
    ]
    found = lines(2, CONFORMANCE.format(specs=specs))
    assert len(found) == 4
    assert all(line.endswith(" []") and int(line.split()[0]) > 500 for line in found), found


def test_agreement_costs_nothing_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    k: Any = Sharded(NumpyBackend(), dp=2)
    monkeypatch.setattr(Local, "gather_objects", lambda *_: pytest.fail("communicated with itself"))
    with pytest.raises(IndexError):
        k.take(k.from_numpy(np.ones((3, 2))), k.cut(k.from_numpy(np.array([0, 9])), 0), 0)


@pytest.mark.parametrize("inputs", ["first", "last"])
def test_some_checks_of_the_contract_on_two_processes(inputs: str) -> None:
    spec = f"sharded(numpy, dp=2, comm=mpi, on_fallback=allow, inputs={inputs})"
    program = f"import sys, backburn.cli as cli; sys.exit(cli.main(['conformance', {spec!r}, '--quick', '--brief']))"
    (line,) = lines(2, program)  # printed by the first process
    assert line.startswith("PASS  sharded(numpy, dp=2, comm=mpi")
