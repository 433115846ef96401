"""Every kernel instance that a launcher may request."""

from __future__ import annotations

from backburn_cupy.kernels.attention import SIZES
from backburn_cupy.kernels.geometry import ROW_VARIANTS, SUM_VARIANTS, TABLES

# The template parameters after the dtype, by family and kernel; empty for kernels that are not templates.
_ROWS, _SUMS = (tuple(f"{lanes}, {items}" for lanes, items in v) for v in (ROW_VARIANTS, SUM_VARIANTS))
_NORMS, _NORM_SUMS = (tuple(f"{v}, {centred}" for v in vs for centred in ("true", "false")) for vs in (_ROWS, _SUMS))
_ALONE = ("",)
_FEW = ("true", "false")
# State has the dtype of the parameters, or is float32.
_TABLES = tuple(f"{state}, {size}" for state in ("{}", "float") for size in TABLES)
_HEADS = tuple(f"{size}, {masked}" for size in SIZES for masked in ("true", "false"))
_NO_DTYPE: tuple[str, ...] = ()

KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "softmax": dict.fromkeys(("softmax", "softmax_backward", "log_softmax", "log_softmax_backward"), _ROWS),
    "losses": dict.fromkeys(
        (
            "label_cross_entropy",
            "label_cross_entropy_backward",
            "softmax_cross_entropy",
            "softmax_cross_entropy_backward",
        ),
        _ROWS,
    ),
    "norm": {"norm": _NORMS, "norm_backward": _NORM_SUMS, "column_sum": _ALONE},
    "reduce": {"sum_all": _ALONE},
    "passes": {"sum_groups": _ALONE},
    "batch_norm": {
        **dict.fromkeys(("moment_coefficients", "finish_sums"), _ALONE),
        **dict.fromkeys(
            ("sum_planes", "sum_columns", "finish_moments", "finish_products", "apply_planes", "apply_columns"), _FEW
        ),
    },
    "activations": dict.fromkeys(
        (
            *("gelu", "gelu_backward", "gelu_tanh", "gelu_tanh_backward", "silu", "silu_backward"),
            *("relu", "relu_backward", "sigmoid_backward", "tanh_backward"),
        ),
        _ALONE,
    ),
    "random": {"random_bits": _NO_DTYPE, "bernoulli": _NO_DTYPE, "uniform": _ALONE, "dropout": _ALONE},
    "index": {
        "wrap_indices": _NO_DTYPE,
        **dict.fromkeys(("take_rows", "add_rows", "sum_runs", "join_runs"), _ALONE),
    },
    "optimizer_steps": {"adam_step": _TABLES, "sgd_step": _TABLES, "copy_tensors": tuple(map(str, TABLES))},
    "scan": {"ssm_scan": _ALONE},
    "recurrent": dict.fromkeys(("lstm_step", "lstm_step_backward", "gru_step", "gru_step_backward"), _ALONE),
    "pool": dict.fromkeys(("max_pool", "avg_pool", "avg_pool_backward"), _ALONE),
    "columns": dict.fromkeys(("columns", "add_columns"), _ALONE),
    "attention": dict.fromkeys(("attend", "attend_backward_queries", "attend_backward_keys"), _HEADS),
}

#: Families with kernels only for 16-bit floats.
NARROW = ("attention",)


def instances(family: str, c_type: str) -> list[str]:
    """The instances of a family's kernels for elements of type ``c_type``."""
    if family in NARROW and c_type in ("float", "double"):
        return []
    found = [
        f"{kernel}<{c_type}{', ' if parameters else ''}{parameters.format(c_type)}>" if variants else kernel
        for kernel, variants in KERNELS[family].items()
        for parameters in variants or ("",)
        if c_type != "double" or "float" not in parameters
    ]
    return list(dict.fromkeys(found))
