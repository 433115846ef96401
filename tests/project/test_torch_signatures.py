"""Names, order and defaults of arguments are PyTorch's, except for a table of exceptions.

``torch_signatures.json`` holds PyTorch's signatures, written by ``tools/freeze_torch_signatures.py``. Parameters in
PyTorch's order may be positional. Those after a parameter that backburn lacks, and those that PyTorch lacks, are
keyword-only: no positional call means something else here.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

import backburn as bb

HERE = Path(__file__)
FROZEN: dict[str, dict[str, list[Any]]] = json.loads((HERE.parent / "torch_signatures.json").read_text())
PAGE = (HERE.parents[2] / "docs" / "coming-from-pytorch.md").read_text()
SILENT = PAGE.partition("## Same name, different result")[2]

#: PyTorch's parameters that no function of backburn has, and why.
NOWHERE = {
    "device": "a backend is chosen by bb.use_backend, or with to",
    "dtype": "a dtype is chosen by bb.use_dtype, or with astype",
    "inplace": "tensors are never changed",
    "size_average": "deprecated there, for reduction",
    "reduce": "deprecated there, for reduction",
    "out": "results are new tensors",
    "foreach": "all parameters are updated together",
    "fused": "all parameters are updated together",
    "capturable": "bb.capture records every optimizer",
    "differentiable": "optimizers are not differentiated",
    "maximize": "negate the loss",
    "last_epoch": "the optimizer counts the steps",
    "_stacklevel": "internal there",
    "error_if_nonfinite": "the norm is returned: norm.isfinite()",
}
#: Parameters that are renamed in every function.
RENAMED = {
    "input": "x",  # operands have the Array API's names: x, or x1 and x2
    "input1": "x1",
    "input2": "x2",
    "dim": "axis",
    "start_dim": "start_axis",
    "end_dim": "end_axis",
}


class Pair(NamedTuple):
    """A function or class, and the group and name of its counterpart in PyTorch."""

    ours: Any
    group: str
    theirs: str
    renamed: Mapping[str, str] = MappingProxyType({})


def _same(module: Any, group: str, suffix: str = "", **renamed: str) -> dict[str, Pair]:
    """The functions of a module with a counterpart of the same name."""
    names = [n for n in module.__all__ if f"{n}{suffix}" in FROZEN[group] and n != "Optimizer"]
    place = module.__name__.removeprefix("backburn.")
    return {f"{place}.{n}": Pair(getattr(module, n), group, f"{n}{suffix}", renamed) for n in names}


F = bb.nn.functional
GRADIENTS = {"parameters": "gradients", "tensors": "gradients"}
FUNCTIONS: dict[str, Pair] = {
    **_same(F, "functional"),
    **{
        f"nn.functional.{ours}": Pair(getattr(F, ours), "functional", theirs)
        for ours, theirs in {
            "adaptive_avg_pool": "adaptive_avg_pool2d", "adaptive_max_pool": "adaptive_max_pool2d",
            "adaptive_max_pool_with_indices": "adaptive_max_pool2d", "avg_pool": "avg_pool2d", "conv": "conv2d",
            "conv_transpose": "conv_transpose2d", "hard_sigmoid": "hardsigmoid", "hard_swish": "hardswish",
            "kl_div_loss": "kl_div", "log_sigmoid": "logsigmoid", "lp_pool": "lp_pool2d", "max_pool": "max_pool2d",
            "max_pool_with_indices": "max_pool2d", "max_unpool": "max_unpool2d",
        }.items()
    },
    "flatten": Pair(bb.flatten, "functional", "flatten"),
    "one_hot": Pair(bb.one_hot, "functional", "one_hot", {"tensor": "x"}),
    "nn.functional.pad_sequence": Pair(F.pad_sequence, "utils", "pad_sequence"),
    **_same(bb.nn.init, "init", "_", tensor="shape"),
    "nn.init.calculate_gain": Pair(bb.nn.init.calculate_gain, "init", "calculate_gain"),
    **_same(bb.optim, "optim"),
    **{
        f"optim.{ours}": Pair(getattr(bb.optim, ours), "utils", theirs, GRADIENTS)
        for ours, theirs in {
            "clip_grad_norm": "clip_grad_norm_", "clip_grad_value": "clip_grad_value_", "global_norm": "get_total_norm",
        }.items()
    },
    **{
        f"optim.schedules.{ours}": Pair(getattr(bb.optim.schedules, ours), "schedules", theirs, {"optimizer": "lr"})
        for ours, theirs in {
            "Cosine": "CosineAnnealingLR", "CosineWarmRestarts": "CosineAnnealingWarmRestarts",
            "Exponential": "ExponentialLR", "Linear": "LinearLR", "MultiStep": "MultiStepLR", "OneCycle": "OneCycleLR",
            "Polynomial": "PolynomialLR", "ReduceOnPlateau": "ReduceLROnPlateau", "Step": "StepLR",
        }.items()
    },
}  # fmt: skip
LAYERS: dict[str, Pair] = _same(bb.nn, "nn")


class Reason(NamedTuple):
    """Why a signature differs, and for calls with different results in both, a line of the page of differences."""

    reason: str
    silent: str = ""


LAST = Reason("the last axis is the default of all functions along an axis", "`softmax(x)`")
ON_ROWS = Reason("gradients are dense, and rows of a table are normalized by bb.nn.functional.normalize")
INDICES = Reason("..._with_indices returns both: the type of a result does not depend on an option")
WEIGHTED = Reason("weights multiply the losses of reduction='none'")
MEMORY = Reason("running statistics are the layer's: a function cannot change them, nor need them to normalize")
LENGTHS = Reason("axis says over what: its length is known, and a tuple in its place raises an error")
SEARCH = Reason("step(model, loss, steps=n) searches along the line, and takes n steps")
RATES = Reason("rates in place of factors, and no default for the number of steps")
MOMENTUM = Reason("schedules are of the learning rate alone, of as many steps as are told")

DENSE = ("no max_norm", "no norm_type", "no scale_grad_by_freq", "no sparse")

#: The differences of each function.
EXCEPTIONS: dict[str, dict[str, Reason]] = {
    "nn.functional.embedding": dict.fromkeys(DENSE, ON_ROWS),
    "nn.functional.embedding_bag": {
        **dict.fromkeys(DENSE, ON_ROWS),
        **dict.fromkeys(
            ("no offsets", "no include_last_offset"), Reason("bags are rows, which padding_idx fills to one length")
        ),
    },
    "nn.functional.softplus": {"threshold=None": Reason("exact without", "`softplus(x)` for `x` above 20")},
    "nn.functional.softmax": {"axis=-1": LAST},
    "nn.functional.log_softmax": {"axis=-1": LAST},
    "nn.functional.softmin": {"axis=-1": LAST},
    "nn.functional.normalize": {"axis=-1": LAST._replace(silent="`normalize(x)`")},
    "nn.functional.cosine_similarity": {"axis=-1": LAST._replace(silent="`cosine_similarity(x, y)`")},
    "nn.functional.gumbel_softmax": {"no eps": Reason("without an effect there")},
    "nn.functional.layer_norm": dict.fromkeys(("no normalized_shape", "weight comes at 1", "bias comes at 2"), LENGTHS),
    "nn.functional.rms_norm": dict.fromkeys(("no normalized_shape", "weight comes at 1"), LENGTHS),
    "nn.functional.instance_norm": dict.fromkeys(
        ("no momentum", "no running_mean", "no running_var", "no use_input_stats"), MEMORY
    ),
    "nn.functional.batch_norm": dict.fromkeys(("no momentum", "no training"), MEMORY),
    "nn.functional.interpolate": {
        "no antialias": Reason("none is implemented"),
        "no recompute_scale_factor": Reason("x.shape times the factor is a size"),
    },
    "nn.functional.scaled_dot_product_attention": dict.fromkeys(
        ("no attn_mask", "mask at 3 is new"), Reason("all attention has one mask, True where to attend")
    ),
    "nn.functional.cross_entropy": {"ignore_index=None": Reason("a label that is not a class raises an error")},
    "nn.functional.nll_loss": {"ignore_index=None": Reason("a label that is not a class raises an error")},
    "nn.functional.mse_loss": {"no weight": WEIGHTED},
    "nn.functional.l1_loss": {"no weight": WEIGHTED},
    "nn.functional.huber_loss": {"no weight": WEIGHTED},
    "nn.functional.adaptive_max_pool": {"no return_indices": INDICES},
    "nn.functional.adaptive_max_pool_with_indices": {"no return_indices": INDICES},
    "nn.functional.max_pool": {"no return_indices": INDICES},
    "nn.functional.max_pool_with_indices": {"no return_indices": INDICES},
    "one_hot": {"num_classes=None": Reason("None, not -1, for as many as there are")},
    "nn.functional.pad_sequence": {
        "no batch_first": Reason("the batch axis is first everywhere", "`pad_sequence(sequences)`"),
        "no padding_side": Reason("bb.flip before and after pads the other side"),
    },
    "optim.SGD": {"no dampening": Reason("a rate of (1 - dampening) * lr does nearly the same")},
    "optim.Adam": {"no decoupled_weight_decay": Reason("AdamW has it")},
    "optim.LBFGS": dict.fromkeys(
        ("no line_search_fn", "no max_eval", "no max_iter", "no tolerance_change", "no tolerance_grad"), SEARCH
    ),
    "optim.schedules.Exponential": {"step_size at 2 is new": Reason("for a decay by the epoch")},
    "optim.schedules.Linear": dict.fromkeys(
        (
            "no lr", "no start_factor", "no end_factor", "init_value at 0 is new", "end_value at 1 is new",
            "total_iters comes at 2", "total_iters='required'",
        ), RATES,
    ),
    "optim.schedules.Polynomial": {
        "total_iters='required'": RATES, "end_value at 3 is new": Reason("there it is 0")
    },
    "optim.schedules.OneCycle": dict.fromkeys(
        (
            "no lr", "max_lr comes at 0", "total_steps comes at 1", "total_steps='required'", "no epochs",
            "no steps_per_epoch", "no anneal_strategy", "no cycle_momentum", "no base_momentum", "no max_momentum",
            "no three_phase",
        ), MOMENTUM,
    ),
    "optim.schedules.ReduceOnPlateau": {
        "no eps": Reason("a reduction is a reduction, however small", "`ReduceLROnPlateau`")
    },
}  # fmt: skip


TABLES = Reason("a module has a dtype by astype, and a table is replaced: layer.weight = nn.parameter(table)")

#: The differences of each layer.
OF_LAYERS: dict[str, dict[str, Reason]] = {
    "nn.Sequential": {"no args": Reason("any number of modules")},
    "nn.ModuleList": {"modules=()": Reason("an empty list")},
    "nn.Embedding": {**dict.fromkeys(DENSE, ON_ROWS), "no _weight": TABLES, "no _freeze": TABLES},
    "nn.EmbeddingBag": {
        **dict.fromkeys(DENSE, ON_ROWS),
        "no _weight": TABLES,
        "no include_last_offset": Reason("bags are rows, which padding_idx fills to one length"),
    },
    "nn.Softplus": {"threshold=None": Reason("exact without", "`softplus(x)` for `x` above 20")},
    "nn.Hardtanh": dict.fromkeys(("no max_value", "no min_value"), Reason("deprecated there, for max_val and min_val")),
    "nn.Softmax": {"axis=-1": LAST},
    "nn.LogSoftmax": {"axis=-1": LAST},
    "nn.Softmin": {"axis=-1": LAST},
    **{
        f"nn.InstanceNorm{rank}d": dict.fromkeys(
            ("no momentum", "no track_running_stats"), Reason("statistics are those of the example")
        )
        for rank in (1, 2, 3)
    },
    "nn.AvgPool1d": {"divisor_override at 5 is new": Reason("PyTorch has it for two and three axes")},
    "nn.Upsample": {"no recompute_scale_factor": Reason("x.shape times the factor is a size")},
    "nn.MultiheadAttention": {
        **dict.fromkeys(("no add_bias_kv", "no add_zero_attn"), Reason("append rows to keys and values")),
        "no batch_first": Reason("the batch axis is first", "`nn.TransformerEncoderLayer(64, 4)`"),
    },
    **{
        f"nn.Transformer{kind}Layer": {
            "no batch_first": Reason("the batch axis is first", "`nn.TransformerEncoderLayer(64, 4)`"),
            "activation='relu'": Reason("a name, there also a function"),
        }
        for kind in ("Encoder", "Decoder")
    },
}


class Parameter(NamedTuple):
    """A parameter: its name, its default or ``required``, and whether it is positional."""

    name: str
    default: Any
    positional: bool


REQUIRED = "required"


def ours_of(pair: Pair) -> list[Parameter]:
    """The parameters in backburn."""
    found = []
    for p in inspect.signature(pair.ours).parameters.values():
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            default = REQUIRED if p.default is p.empty else p.default
            found.append(Parameter(p.name, default, p.kind is not p.KEYWORD_ONLY))
    return found


def theirs_of(pair: Pair) -> list[Parameter]:
    """The parameters in PyTorch, with backburn's names."""
    found, positional = [], True
    for entry in FROZEN[pair.group][pair.theirs]:
        if entry == "*":
            positional = False
            continue
        name, default = (entry, REQUIRED) if isinstance(entry, str) else entry
        if pair.group == "optim" and name == "params":  # here an argument of step
            continue
        default = tuple(default) if isinstance(default, list) else default
        found.append(Parameter(pair.renamed.get(name, RENAMED.get(name, name)), default, positional))
    return found


def differences(pair: Pair) -> set[str]:
    """The differences from PyTorch's signature, as written in the table of exceptions."""
    ours, theirs = ours_of(pair), theirs_of(pair)
    by_name = {p.name: p for p in ours}
    has_options = "options" in inspect.signature(pair.ours).parameters  # a dtype, a backend, a generator
    found = set()
    for p in theirs:
        if p.name not in by_name:
            if p.name not in NOWHERE and not (has_options and p.name == "generator"):
                found.add(f"no {p.name}")
            continue
        default = by_name[p.name].default
        if default != p.default or isinstance(default, bool) is not isinstance(p.default, bool):
            found.add(f"{p.name}={default!r}")
    known = {p.name for p in theirs}
    for i, p in enumerate(p for p in ours if p.positional):
        if i >= len(theirs) or theirs[i].name != p.name:
            found.add(f"{p.name} comes at {i}" if p.name in known else f"{p.name} at {i} is new")
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_optimizers_have_the_arguments_of_pytorch(name: str) -> None:
    expected = EXCEPTIONS.get(name, {})
    assert differences(FUNCTIONS[name]) == expected.keys()
    for reason in expected.values():
        assert reason.silent in SILENT


@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_the_arguments_of_pytorch(name: str) -> None:
    expected = OF_LAYERS.get(name, {})
    assert differences(LAYERS[name]) == expected.keys()
    for reason in expected.values():
        assert reason.silent in SILENT


def test_the_tables_contain_only_compared_names() -> None:
    pairs = [*FUNCTIONS.values(), *LAYERS.values()]
    assert EXCEPTIONS.keys() <= FUNCTIONS.keys()
    assert OF_LAYERS.keys() <= LAYERS.keys()
    theirs = {e if isinstance(e, str) else e[0] for pair in pairs for e in FROZEN[pair.group][pair.theirs]}
    assert set(NOWHERE) | set(RENAMED) <= theirs
    ours = {p.name for pair in pairs if pair.ours is not bb.one_hot for p in ours_of(pair)}  # has a dtype
    assert not ours & (set(NOWHERE) | set(RENAMED))


def test_differences_of_each_kind_are_detected() -> None:
    def linear(x: Any, bias: Any = 0, weight: Any = None, *, more: int = 1) -> None: ...

    found = differences(Pair(linear, "functional", "linear"))
    assert found == {"bias=0", "weight=None", "bias comes at 1", "weight comes at 2"}

    def dropout(x: Any, rate: float = 0.5, *, training: bool = False) -> None: ...

    assert differences(Pair(dropout, "functional", "dropout")) == {"no p", "rate at 1 is new", "training=False"}
