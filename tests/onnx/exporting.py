"""Export a model and compare its results in backburn, in the standard's evaluator and in onnxruntime."""

import importlib.util
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import backburn as bb
from backburn.trees import flatten

#: Attention and norms of opset 23 need a newer evaluator than the oldest supported one.
HAS_RUNTIME = importlib.util.find_spec("onnxruntime") is not None


def tensors_of(tree: Any) -> list[Any]:
    return [x for x in flatten(tree)[0] if isinstance(x, bb.Tensor)]


def as_inputs(proto: Any, examples: Any) -> dict[str, Any]:
    return {spec.name: x.numpy() for spec, x in zip(proto.graph.input, tensors_of(examples), strict=True)}


def far(x: Any, y: Any) -> float:
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    if x.dtype.kind != "f":
        return float((x != y).sum())
    x, y = x.astype(np.float64), y.astype(np.float64)
    differs = ~((x == y) | (np.isnan(x) & np.isnan(y)))
    x, y = x[differs], y[differs]
    return float(np.abs(x - y).max(initial=0.0) / max(1.0, np.abs(y).max(initial=0.0)))


def run_reference(proto: Any, examples: Any) -> list[Any]:
    found: Any = ReferenceEvaluator(proto).run(None, as_inputs(proto, examples))
    return list(found)


def run_runtime(proto: Any, examples: Any) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if any(node.op_type == "DequantizeLinear" for node in proto.graph.node):
        # Further optimizations would quantize float activations.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, as_inputs(proto, examples)))


def loss_of(outputs: Any, seed: int = 0) -> Any:
    """A scalar that depends on every float of the outputs."""
    rng = np.random.default_rng(seed)
    total: Any = 0.0
    for x in tensors_of(outputs):
        if x.dtype.is_floating:
            total = total + (x * bb.asarray(rng.normal(size=x.shape), dtype=x.dtype, backend=x.backend)).sum()
    return total


def check_again(proto: Any, loaded: Any, examples: Any, dynamic: Any = None) -> None:
    """Assert that the loaded model is exported as the same file."""
    again = bb.onnx.export(loaded, None, *examples, dynamic=dynamic)
    assert again.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True)


def check_export(
    model: Any, *examples: Any, tolerance: float = 1e-6, gradients: bool = True, reference: bool = True,
    runtime: bool = True, **options: Any,
) -> Any:  # fmt: skip
    """Export a model, and check that the file is valid, with the model's names, outputs and gradients."""
    model = model.eval()
    proto = bb.onnx.export(model, None, *examples, **options)
    onnx.checker.check_model(proto, full_check=True)
    expected = tensors_of(model(*examples))
    arrays = [x.numpy() for x in expected]
    loaded = bb.onnx.load(proto, backend=examples[0].backend if examples else None)
    found = tensors_of(loaded(*tensors_of(examples)))
    for x, y in zip(found, arrays, strict=True):
        assert far(x.numpy(), y) < tolerance, far(x.numpy(), y)
    check_again(proto, loaded, tensors_of(examples), options.get("dynamic"))
    names = {x.name for x in proto.graph.initializer if not x.name.startswith(("constant_", "table_"))}
    state = set(model.state_dict())
    assert names <= state | {f"{path}_{part}" for path in state for part in ("scale", "zero_point")}
    trained = {path for path, _ in model.named_parameters()}
    assert {path for path, _ in loaded.named_parameters()} == names & trained, (names & trained) ^ {
        path for path, _ in loaded.named_parameters()
    }
    if gradients and names & trained and any(x.is_tracked for x in expected if x.dtype.is_floating):
        ours, theirs = loss_of(expected).backward(), loss_of(found).backward()
        there = dict(loaded.named_parameters())
        for path, parameter in model.named_parameters():
            gradient = parameter.grad(ours)
            if path in there and gradient is not None:
                same: Any = there[path].grad(theirs)
                assert far(same.numpy(), gradient.numpy()) < 10 * tolerance, path
    if reference:
        for x, y in zip(run_reference(proto, examples), arrays, strict=True):
            assert far(np.asarray(x), y) < tolerance, ("reference", far(np.asarray(x), y))
    if runtime and HAS_RUNTIME:
        for x, y in zip(run_runtime(proto, examples), arrays, strict=True):
            assert far(x, y) < tolerance, ("onnxruntime", far(x, y))
    return proto
