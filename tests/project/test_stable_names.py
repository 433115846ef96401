"""Stable names that programs, configuration files and other packages use, listed explicitly.

A failing test means that a name was removed or added. Removing a name breaks programs: restore it. Add a new name to
the list; it must then remain.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.backend import AUTODIFF_METHODS, OPERATIONS, AutodiffBackend, list_backends
from backburn.backend.registry import list_decorators
from backburn.backend.spec import parse
from backburn.cli import parser
from backburn.train.config import Config, run_of
from backburn.train.signatures import parameters_of

ROOT = Path(__file__).parents[2]

# ---- entry points ----

BACKENDS = {"cupy", "null", "numpy"}
DECORATORS = {"autodiff", "capture", "forward", "profile", "trace"}
COMMUNICATORS = {"count", "local", "mpi", "nccl"}


def test_the_groups_of_entry_points() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {group: set(names) for group, names in project["entry-points"].items()} == {
        "backburn.backends": BACKENDS,
        "backburn.decorators": DECORATORS,
        "backburn.communicators": COMMUNICATORS,
    }
    assert {b.name for b in list_backends()} >= BACKENDS
    assert {d.name for d in list_decorators()} >= DECORATORS


# ---- specs ----


@pytest.mark.parametrize(
    ("spec", "names", "device", "options"),
    [
        ("numpy", ["numpy"], None, {}),
        ("numpy()", ["numpy"], None, {}),
        ("autodiff(numpy)", ["autodiff", "numpy"], None, {}),
        ("autodiff( autodiff( numpy ) )", ["autodiff", "autodiff", "numpy"], None, {}),
        ("cupy:1", ["cupy"], 1, {}),
        ("mine(a=1, b=-2.5e3)", ["mine"], None, {"a": 1, "b": -2500.0}),
        ("mine:0(a=true, b=False, c=word)", ["mine"], 0, {"a": True, "b": False, "c": "word"}),
        ("capture(numpy, join=false)", ["capture", "numpy"], None, {"join": False}),
        ("autodiff(capture(cupy:2(tf32=true)))", ["autodiff", "capture", "cupy"], None, {}),
    ],
)
def test_the_grammar_of_specs(spec: str, names: list[str], device: int | None, options: dict[str, Any]) -> None:
    found = parse(spec)
    assert (list(found.names()), found.device, found.options) == (names, device, options)


@pytest.mark.parametrize("spec", ["numpy", "null", "autodiff(numpy)", "forward(numpy)", "capture(numpy, join=false)"])
def test_a_backend_has_the_spec_that_loads_it(spec: str) -> None:
    assert bb.load_backend(spec).spec == spec


# ---- the command line ----

COMMANDS: dict[str, set[str]] = {
    "train": {
        "config", "overrides", "--backend", "--epochs", "--seed", "--out", "--check", "--dry-run", "--resume",
        "--overwrite",
    },
    "evaluate": {"model", "--backend", "--config", "--trust"},
    "runs": {"folders", "--metric", "--sort", "--reverse", "--compare", "--plot", "--report", "--json"},
    "predict": {"model", "inputs", "--dict", "--out", "--batch-size", "--backend", "--config", "--trust"},
    "conformance": {
        "backend", "--quick", "--ops", "--dtypes", "--kinds", "--only", "--xfail", "--json", "--markdown", "--html",
        "--brief", "--jobs", "--timeout", "--memory", "--in-process", "--new", "--large",
    },
    "generate": {
        "folder", "prompt", "--chat", "--backend", "--dtype", "--max-new-tokens", "--temperature", "--top-k", "--top-p",
        "--min-p", "--repetition-penalty", "--seed",
    },
    "run": {"file", "--input", "--output", "--backend"},
    "launch": {"--ranks", "--mpiexec", "program"},
    "backends": set(),
    "info": {"operation", "--json", "--required", "--source", "--plan"},
}  # fmt: skip


def test_commands_and_their_options() -> None:
    found = next(a.choices for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert found is not None
    written = {
        command: {name for a in made._actions for name in (a.option_strings[-1:] or [a.dest])}
        for command, made in found.items()
    }
    assert written == {command: names | {"--help", "--debug"} for command, names in COMMANDS.items()}


# ---- configuration ----

KEYS = {
    "backend", "metrics",
    "data.build", "model.build", "loss.function",
    "optimizer.name", "optimizer.learning_rate", "optimizer.weight_decay", "optimizer.schedule", "optimizer.factor",
    "optimizer.patience",
    "schedule.name", "schedule.warmup",
    "train.epochs", "train.batch_size", "train.seed", "train.label_smoothing", "train.capture", "train.precision",
    "train.accumulate", "train.clip", "train.average", "train.on_nan", "train.steps_per_epoch", "train.log_every",
    "callbacks.early_stopping.monitor", "callbacks.early_stopping.patience", "callbacks.early_stopping.mode",
    "callbacks.early_stopping.min_delta",
    "callbacks.checkpoints.last", "callbacks.checkpoints.best", "callbacks.checkpoints.mode",
    "callbacks.checkpoints.every", "callbacks.checkpoints.minutes",
    "output.folder",
    "distributed.mesh", "distributed.parameters", "distributed.plan", "distributed.deterministic",
    "distributed.threads", "distributed.timeout", "distributed.check",
}  # fmt: skip

#: The arguments of the digits' functions: the keys of configurations without user functions.
DIGITS = {
    "data": {"name", "validation", "distort", "batch_size", "seed"},
    "model": {"hidden", "activation", "dropout"},
    "loss": {"label_smoothing"},
}


def keys_of(section: Any, prefix: str = "") -> set[str]:
    """The dotted keys of a section of the configuration, including subsections."""
    found: set[str] = set()
    for name, field in section.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if hasattr(kind, "model_fields")]
        found |= keys_of(kinds[0], f"{prefix}{name}.") if kinds else {prefix + name}
    return found


def test_the_keys_of_the_configuration() -> None:
    assert keys_of(Config) == KEYS


def test_the_keys_of_the_digits() -> None:
    functions = run_of({}, Path(), "the digits").functions()
    skipped = {"data": 0, "model": 0, "loss": 2}
    assert {table: set(parameters_of(functions[table,][0], n).types) for table, n in skipped.items()} == DIGITS


VARIABLES = {
    "BACKBURN_BACKEND", "BACKBURN_BLAS", "BACKBURN_COMPILED", "BACKBURN_CUPY_DEBUG", "BACKBURN_DEBUG",
    "BACKBURN_DISABLE_PLUGINS", "BACKBURN_MACHINE_CODE", "BACKBURN_NUM_THREADS",
}  # fmt: skip


def test_the_variables_of_the_environment() -> None:
    sources = [path.read_text(encoding="utf-8") for base in ("src", "backends") for path in (ROOT / base).rglob("*.py")]
    assert {name for text in sources for name in re.findall(r'"(BACKBURN_[A-Z_]+)"', text)} == VARIABLES


# ---- tapes ----

TAPES = {"AnyGradOp", "GradGraph", "GradOp", "GradientTape", "Record"}
CLOSURES = {"Cell", "Gradient", "Gradients", "GradientTape"}
#: Public members of the classes, the same for primitives and tensors.
MEMBERS = {
    "GradientTape": {"alloc", "backward", "input", "num_tensors", "record", "reset", "shape", "value"},
    "GradGraph": {
        "abs", "add", "backward", "backward_collect", "backward_with_seed", "batch_norm", "cat", "clamp", "clip_grad",
        "clip_grad_norm", "cos", "cross_entropy", "div", "double_backward", "exp", "gather", "grad", "hessian",
        "hessian_diag", "input", "jacobian", "layer_norm", "ln", "log2", "map_lookup", "mapping", "matmul", "mean",
        "mul", "neg", "nodes", "parameter", "picture", "pow", "push_node", "record", "reforward", "relu", "reshape",
        "scalar_mul", "set_tensor", "sigmoid", "sin", "softmax", "sqrt", "struct_field", "sub", "sum", "tanh_act",
        "tensor", "transpose_op", "value", "vmap_forward", "where_cond", "zero_grad",
    },
    "closures.GradientTape": {"add_backward_op", "append", "backend", "execute", "record"},
    "closures.Gradients": {
        "backend", "get", "mut_and_ref", "mut_gradient", "ref_gradient", "remove", "unused",
    },
    "closures.Gradient": {"dtype", "shape", "value"},
    "closures.Cell": {"add", "addmul", "dtype", "set", "shape", "value"},
}  # fmt: skip
#: The recording methods that are written by hand; every differentiable operation has one, too.
RECORDED = {
    "record_add", "record_mul", "record_matmul", "record_silu", "record_layer_norm", "record_ssm_scan",
}  # fmt: skip
NODES = {
    "Input", "Parameter", "Add", "Sub", "Mul", "Div", "Neg", "MatMul", "Sum", "Mean", "ScalarMul", "Exp", "Ln",
    "StructField", "MapLookup", "Sin", "Cos", "Sqrt", "Pow", "Sigmoid", "Relu", "TanhAct", "Abs", "Log2", "Softmax",
    "CrossEntropy", "LayerNorm", "BatchNorm", "Clamp", "Where", "Reshape", "TransposeOp", "CatOp", "GatherOp",
}  # fmt: skip

BOTH = pytest.mark.parametrize("package", ["backburn.tape", "backburn.autodiff.tape"])


def public(names: Any) -> set[str]:
    """The names without a leading underscore, except the recording methods."""
    return {n for n in names if not n.startswith(("_", "record_"))}


@BOTH
def test_the_names_of_the_tapes(package: str) -> None:
    tapes, closures = import_module(package), import_module(f"{package}.closures")
    assert set(tapes.__all__) == TAPES
    assert set(closures.__all__) == CLOSURES
    for path, members in MEMBERS.items():
        found = getattr(closures if path.startswith("closures.") else tapes, path.removeprefix("closures."))
        assert public(dir(found)) == members, path
    backends = [tapes.GradientTape().backend.spec, tapes.GradGraph().backend.spec, closures.GradientTape().backend.spec]
    assert backends == ["numpy"] * 3


@BOTH
def test_the_recording_methods(package: str) -> None:
    tape = import_module(package).GradientTape
    assert len(RECORDED) == 6
    for name in RECORDED | {f"record_{name}" for name, entry in OPERATIONS.items() if entry.differentiable}:
        assert callable(getattr(tape, name)), name


@BOTH
def test_the_types_of_nodes(package: str) -> None:
    tapes = import_module(package)
    assert len(NODES) == 34
    assert isinstance(tapes.AnyGradOp, UnionType)
    assert {variant.__qualname__ for variant in get_args(tapes.AnyGradOp)} == {f"GradOp.{name}" for name in NODES}
    assert {name for name, value in vars(tapes.GradOp).items() if isinstance(value, type)} == NODES


# ---- the trait of autodiff backends ----

TRAIT = {
    "backward", "grad", "grad_remove", "grad_replace", "inner", "int_inner", "bool_inner", "q_inner", "from_inner",
    "int_from_inner", "bool_from_inner", "q_from_inner",
}  # fmt: skip


@pytest.mark.parametrize("has", [lambda name: hasattr(AutodiffBackend, name), lambda name: hasattr(Autodiff, name)])
def test_the_methods_of_the_trait(has: Callable[[str], bool]) -> None:
    assert len(TRAIT) == 12
    assert set(AUTODIFF_METHODS) == TRAIT
    assert all(map(has, TRAIT))
