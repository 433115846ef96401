"""One valid call of every public function, by parameter name, from which tests of misuse start."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import backburn as bb

F = bb.asarray([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 0.3, 0.2, 0.1]])
V = F[0]
P = bb.asarray([0, 2, 1, 0])  # positions
I = bb.asarray([[3, 1, 2, 0], [1, 2, 0, 3], [0, 1, 2, 3]])
M = F > 0.5
S = bb.asarray([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])  # positive definite
X = bb.asarray(np.linspace(-1, 1, 50).reshape(1, 2, 5, 5).astype("float32"))  # an image
Q = F.quantize()


#: Arguments by parameter name, unless CALLS overrides them. A parameter with a default that is not here
#: is omitted from the valid call, but still replaced by wrong values in its turn.
COMMON: dict[str, Any] = {
    "x": F, "y": F, "x1": F, "x2": F, "real": V, "imag": V, "target": F, "logits": F, "arrays": (F, F),
    "indices": P, "mask": M, "value": 1.0, "axis": 0, "shape": (3, 4), "n": 4, "k": 2, "fill_value": 2.0,
    "start": 0, "stop": 4, "dtype": "float32", "source": 0, "destination": 1, "axis1": 0, "axis2": 1,
    "condition": M, "values": 1.0, "num_classes": 4, "weight": 0.5, "type": "float32", "from_": "int8", "to": "int16",
    "chunks": 2, "size": 2, "kernel_size": 2, "output_size": 2, "num": 3, "n_rows": 3,
    "spec": "autodiff(numpy)", "backend": "numpy", "tree": [F], "kind": "integral", "seed": 3, "start_": 1,
}  # fmt: skip

#: Parameters by function; functions outside the top level have their module as a prefix.
CALLS: dict[str, dict[str, Any]] = {
    "arange": {"start": 0},
    "astype": {"dtype": "int32"},
    "bincount": {"x": P},
    "bitwise_and": {"x": I, "y": I},
    "bitwise_invert": {"x": I},
    "bitwise_left_shift": {"x": I, "y": I},
    "bitwise_or": {"x": I, "y": I},
    "bitwise_right_shift": {"x": I, "y": I},
    "bitwise_xor": {"x": I, "y": I},
    "broadcast_to": {"shape": (2, 3, 4)},
    "broadcast_shapes": {"shapes": ((2, 1), (3,))},
    "dequantize": {"x": Q, "dtype": None},
    "einsum": {"subscripts": "ij,kj->ik", "operands": (F, F)},
    "from_dlpack": {"x": np.ones(2)},
    "from_inner": {"x": F.inner(), "backend": None},
    "gather_nd": {"x": F, "indices": bb.asarray([[0, 1], [2, 2]])},
    "gradient": {"spacing": (), "axis": 0},
    "gradient_rule": {"operation": "misuse_nothing", "rules": {}},
    "histogram": {"x": V},
    "index_add": {"indices": bb.asarray([0, 2])},
    "index_copy": {"indices": bb.asarray([0, 2])},
    "index_reduce": {"indices": bb.asarray([0, 2]), "mode": "mul"},
    "ldexp": {"x": F, "exponent": 2},
    "linspace": {"start": 0.0, "stop": 1.0},
    "logical_and": {"x": M, "y": M},
    "logical_not": {"x": M},
    "logical_or": {"x": M, "y": M},
    "logical_xor": {"x": M, "y": M},
    "matmul": {"x2": F.T},
    "one_hot": {"x": P, "dtype": bb.int64},
    "operation": {},
    "overlap_add": {"x": bb.ones((3, 2)), "length": 4},
    "pad": {"widths": 1},
    "permute_dims": {"axes": (1, 0)},
    "polar": {"r": F, "theta": F},
    "quantile": {"q": 0.5},
    "nanquantile": {"q": 0.5},
    "quantize": {"dtype": bb.qint8},
    "asarray": {"obj": [1.0, 2.0]},
    "iinfo": {"type": "int8"},
    "meshgrid": {"arrays": (V, V)},
    "convolve": {"x1": V, "x2": V},
    "correlate": {"x1": V, "x2": V},
    "vander": {"x": V},
    "view_as_complex": {"x": bb.ones((3, 2))},
    "view_as_real": {"x": F * 1j},
    "cumulative_prod": {"axis": 0},
    "cumulative_sum": {"axis": 0},
    "quantized_linear": {"x": F, "weight": bb.asarray(np.ones((2, 4), "float32")).quantize()},
    "quantized_matmul": {"x": Q, "y": F.T.quantize(), "dtype": None},
    "register_backend": {"name": "misuse", "factory": lambda: None},
    "register_decorator": {"name": "misusing", "factory": lambda inner: inner},
    "implement": {"operation": "tanh", "backend": type("Nothing", (), {})},
    "repeat": {"repeats": 2},
    "result_type": {"arrays_and_dtypes": ("int8", F)},
    "roll": {"shift": 1},
    "scatter": {"indices": bb.asarray([[0, 1, 2, 0]])},
    "scatter_nd": {"indices": bb.asarray([[0, 1], [2, 2]])},
    "searchsorted": {"x1": V, "x2": F},
    "set_num_threads": {"count": 1},
    "sliding_window": {"size": 2},
    "take": {"indices": bb.asarray([0, 2]), "axis": 0},
    "take_along_axis": {"indices": bb.asarray([[0, 1, 2, 0]])},
    "tensordot": {"x2": F.T, "axes": 1},
    "tile": {"repetitions": 2},
    "to": {"x": F},
    "linalg.cholesky": {"x": S},
    "linalg.cholesky_solve": {"x1": S, "x2": F},
    "linalg.cdist": {"x1": F, "x2": F},
    "linalg.matrix_exp": {"x": S},
    "linalg.cross": {"x1": F, "x2": F, "axis": 0},
    "linalg.det": {"x": S},
    **{f"linalg.{name}": {"x": S} for name in ("eig", "eigh", "eigvals")},
    "linalg.eigvalsh": {"x": S},
    "linalg.inv": {"x": S},
    "linalg.lstsq": {"x1": S, "x2": F},
    "linalg.matmul": {"x2": F.T},
    "linalg.matrix_power": {"x": S, "n": 2},
    "linalg.outer": {"x1": V, "x2": V},
    "linalg.slogdet": {"x": S},
    "linalg.solve": {"x1": S, "x2": F},
    "linalg.tensordot": {"x2": F.T, "axes": 1},
    "linalg.triangular_solve": {"x1": S, "x2": F},
    **{f"fourier.{name}": {"n": (4,)} for name in ("fftn", "ifftn", "irfftn")},
    **{f"fft.{name}": {"s": (4,)} for name in ("fftn", "ifftn", "irfftn", "rfftn")},
    "fft.irfft": {"x": V, "n": 6},
    "interp": {"x": F, "xp": V, "fp": V},
    "fourier.rfftn": {"n": (3, 4)},
    "fourier.irfft": {"real": V, "imag": V, "n": 6},
    "fourier.istft": {"real": bb.ones((3, 5)), "imag": bb.ones((3, 5))},
    "fourier.stft": {"x": bb.ones((20,)), "size": 8, "window": bb.ones((8,))},
    "random.categorical": {"logits": V, "shape": (2,)},
    "random.dirichlet": {"alpha": V, "shape": (2,)},
    "random.bernoulli": {"p": 0.5},
    "random.choice": {"x": 5, "shape": (2,)},
    "random.integers": {"low": 0, "high": 5, "dtype": None},
    "random.permutation": {"x": 5},
    "random.set_state": {"state": bb.random.get_state()},
    "random.normal": {"mean": 0.0, "std": 1.0},
    "random.uniform": {"low": 0.0, "high": 1.0},
    "nn.functional.gumbel_softmax": {"tau": 0.5},
    "nn.functional.pad_sequence": {"sequences": [V, V]},
    "nn.functional.linear": {"x": F, "weight": bb.ones((2, 4)), "bias": bb.ones((2,))},
    "nn.functional.feed_forward": {
        "x": F,
        "weight1": bb.ones((3, 4)),
        "bias1": bb.ones((3,)),
        "weight2": bb.ones((2, 3)),
        "bias2": bb.ones((2,)),
        "activation": "gelu",
    },
    "nn.functional.embedding": {"x": P, "weight": F},
    "nn.functional.bilinear": {"x1": F, "x2": F, "weight": bb.ones((2, 4, 4)), "bias": bb.ones((2,))},
    "nn.functional.embedding_bag": {"x": I, "weight": bb.ones((4, 2)), "mode": "sum", "padding_idx": 0},
    "nn.functional.prelu": {"weight": bb.asarray(0.5)},
    "nn.functional.glu": {"axis": -1},
    "nn.functional.threshold": {"threshold": 0.5, "value": 0.0},
    "nn.functional.layer_norm": {"weight": V, "bias": V, "axis": -1},
    "nn.functional.rms_norm": {"weight": V, "axis": -1},
    "nn.functional.group_norm": {"x": X, "num_groups": 2},
    "nn.functional.instance_norm": {"x": X},
    "nn.functional.batch_norm": {"x": F, "running_mean": V, "running_var": V, "axis": 1},
    "nn.functional.batch_norm_training": {"axis": 1},
    "nn.functional.conv": {"x": X, "weight": bb.ones((3, 2, 2, 2)), "bias": bb.ones((3,))},
    "nn.functional.conv_transpose": {"x": X, "weight": bb.ones((2, 3, 2, 2)), "bias": bb.ones((3,))},
    "nn.functional.deform_conv2d": {
        "x": X, "offset": bb.zeros((1, 8, 4, 4)), "weight": bb.ones((3, 2, 2, 2)), "mask": bb.ones((1, 4, 4, 4)),
        "bias": bb.ones((3,)),
    },
    "nn.functional.max_pool": {"x": X},
    "nn.functional.max_pool_with_indices": {"x": X},
    "nn.functional.max_unpool": {"x": X, "indices": bb.zeros(X.shape, dtype="int64")},
    "nn.functional.avg_pool": {"x": X},
    "nn.functional.lp_pool": {"x": X, "norm_type": 2},
    "nn.functional.adaptive_avg_pool": {"x": X},
    "nn.functional.adaptive_max_pool": {"x": X},
    "nn.functional.adaptive_max_pool_with_indices": {"x": X},
    "nn.functional.interpolate": {"x": X, "size": 3},
    "nn.functional.affine_grid": {"theta": bb.ones((1, 2, 3)), "size": (1, 2, 4, 4)},
    "nn.functional.grid_sample": {"x": X, "grid": bb.zeros((1, 2, 2, 2))},
    "nn.functional.unfold": {"x": X},
    "nn.functional.fold": {"x": bb.ones((1, 8, 16)), "output_size": (5, 5)},
    "nn.functional.lstm_cell": {
        "projected": bb.ones((2, 12)), "hidden": bb.ones((2, 3)), "cell": bb.ones((2, 3)), "weight": bb.ones((12, 3)),
        "bias": bb.ones((12,)),
    },
    "nn.functional.lstm": {
        "projected": bb.ones((4, 2, 12)), "hidden": bb.ones((2, 3)), "cell": bb.ones((2, 3)),
        "weight": bb.ones((12, 3)), "bias": bb.ones((12,)),
    },
    "nn.functional.gru": {
        "projected": bb.ones((4, 2, 9)), "hidden": bb.ones((2, 3)), "weight": bb.ones((9, 3)), "bias": bb.ones((9,)),
    },
    "nn.functional.gru_cell": {
        "projected": bb.ones((2, 9)), "hidden": bb.ones((2, 3)), "weight": bb.ones((9, 3)), "bias": bb.ones((9,)),
    },
    "nn.functional.scaled_dot_product_attention": {"query": F, "key": F, "value": F, "mask": bb.ones((3, 3)) > 0.0},
    "nn.functional.ssm_scan": {"a": F, "b": F, "h0": V},
    "nn.functional.cross_entropy": {"target": bb.asarray([0, 1, 2]), "weight": V, "axis": -1},
    "nn.functional.nll_loss": {"target": bb.asarray([0, 1, 2]), "weight": V, "axis": -1},
    "nn.functional.multi_margin_loss": {"target": bb.asarray([0, 1, 2]), "weight": V},
    "nn.functional.multilabel_margin_loss": {"target": I},
    "nn.functional.cosine_embedding_loss": {"target": bb.asarray([1.0, -1.0, 1.0]), "axis": -1},
    "nn.functional.triplet_margin_loss": {"anchor": F, "positive": F, "negative": F},
    "nn.functional.binary_cross_entropy": {"weight": None},
    "nn.functional.binary_cross_entropy_with_logits": {"weight": None},
    "nn.functional.gaussian_nll_loss": {"var": F},
    "nn.functional.ctc_loss": {
        "log_probs": bb.log_softmax(bb.ones((5, 2, 4))), "targets": bb.asarray([[1, 2], [3, 1]]),
        "input_lengths": bb.asarray([5, 5]), "target_lengths": bb.asarray([2, 2]),
    },
    "nn.functional.rnnt_loss": {
        "log_probs": bb.log_softmax(bb.ones((2, 5, 3, 4))), "targets": bb.asarray([[1, 2], [3, 1]]),
        "input_lengths": bb.asarray([5, 5]), "target_lengths": bb.asarray([2, 2]),
    },
    "nn.functional.fake_quantize": {"dtype": bb.qint8},
    "nn.functional.quantized_linear": {"x": F, "weight": bb.asarray(np.ones((2, 4), "float32")).quantize()},
}  # fmt: skip

#: Excluded: functions that declare operations or transform functions; other tests check their bad input.
LEFT_OUT = {"__array_namespace_info__", "gradient_rule", "implement", "operation"}


def modules() -> dict[str, types.ModuleType]:
    """The modules whose functions users call, by the prefix of their names."""
    return {
        "": bb._namespace, "linalg.": bb.linalg, "fft.": bb.fft, "fourier.": bb.fourier,
        "random.": bb.random, "nn.functional.": bb.nn.functional,
    }  # fmt: skip


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function with its full name."""
    for prefix, module in modules().items():
        names = module.__all__ if prefix else [n for n in vars(module) if not n.startswith("_")]
        for name in names:
            value = getattr(module, name)
            is_transform = getattr(value, "__module__", "").startswith("backburn.transforms")
            if inspect.isfunction(value) and not is_transform and name not in LEFT_OUT:
                yield prefix + name, value


def valid_call(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments by parameter name with which the function succeeds."""
    given = CALLS.get(name, CALLS.get(name.rpartition(".")[2], {})) if "." not in name else CALLS.get(name, {})
    call = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in given:
            call[parameter.name] = given[parameter.name]
        elif parameter.name in COMMON and parameter.default is parameter.empty:
            call[parameter.name] = COMMON[parameter.name]
    return call


def bind(function: Callable[..., Any], call: dict[str, Any]) -> Any:
    """Call a function with arguments by parameter name, including positional-only parameters."""
    positional, options = [], {}
    parameters = inspect.signature(function).parameters.values()
    by_place = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = call.get(parameter.name, ())
            positional += [*rest] if isinstance(rest, tuple) else [rest]
        elif parameter.kind is parameter.POSITIONAL_ONLY or (by_place and parameter.kind is not parameter.KEYWORD_ONLY):
            if parameter.name in call:
                positional.append(call[parameter.name])
            elif parameter.default is not parameter.empty:
                positional.append(parameter.default)
        elif parameter.kind is not parameter.VAR_KEYWORD and parameter.name in call:
            options[parameter.name] = call[parameter.name]
    return function(*positional, **options)
