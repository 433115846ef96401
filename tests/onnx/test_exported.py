"""Modules written by PyTorch's newest exporter: outputs, gradients and parameter names are PyTorch's."""

import gc

import pytest

pytest.importorskip("onnx", reason="reading ONNX models needs the package onnx")
import numpy as np
import onnx
from tests.onnx.exported import NAMES, far, inputs_of, load, loss_of, numbers
from tests.onnx.exporting import HAS_RUNTIME, check_again, run_runtime

import backburn as bb
from backburn import optim

#: Parameters without their name in the file: one folded into a constant, and a weight that is only the transposed
#: operand of a loop body.
NOT_THERE = {"einsums": {"scale"}}
OTHERWISE = {"scanned": {"fc.weight": "permute"}}
#: bfloat16 has 8 significant bits; everything else is compared with float64.
TOLERANCE = {"bfloat16": 2.0**-6}


def test_at_least_22_modules_are_there():
    assert len(NAMES) >= 22


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_those_of_pytorch(name):
    arrays = numbers(name)
    model = load(name, backend="autodiff(numpy)")
    output = model(*inputs_of(name, arrays))
    tolerance = TOLERANCE.get(name, 1e-5)
    assert far(output.numpy(), arrays["output"]) < tolerance
    gradients = loss_of(output, arrays).backward()
    parameters = dict(model.named_parameters())
    expected = {key.removeprefix("grad:"): array for key, array in arrays.items() if key.startswith("grad:")}
    others = OTHERWISE.get(name, {})
    expected = {path: array for path, array in expected.items() if path not in NOT_THERE.get(name, ())}
    assert set(parameters) == {others.get(path, path) for path in expected}
    for path, array in expected.items():
        found = parameters[others.get(path, path)].grad(gradients)
        if found is None:  # in a branch not taken
            assert not array.any()
            continue
        values = found.numpy().T if path in others else found.numpy()
        assert far(values, array) < tolerance, path


@pytest.mark.parametrize("name", ["resnet", "gpt", "lstm", "again", "branch", "scanned", "bags"])
@pytest.mark.parametrize("backend", ["autodiff(capture(numpy))", "sharded(numpy, dp=2)"])
def test_outputs_on_other_backends(name, backend):
    arrays = numbers(name)
    model = load(name, backend=backend)
    assert far(model(*inputs_of(name, arrays, backend)).numpy(), arrays["output"]) < 1e-5


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "gpt", "encoder", "fresh", "lstm"])
def test_null_computes_shapes(name):
    arrays = numbers(name)
    model = load(name, backend="null")
    assert model(*inputs_of(name, arrays, "null")).shape == arrays["output"].shape


@pytest.mark.slow
def test_the_pytorch_adapter_computes_the_same():
    pytest.importorskip("torch", reason="the example's backend needs PyTorch, which is not installed")
    from tests.onnx.nodes import backend_of

    backend = bb.Autodiff(backend_of("torch"))
    arrays = numbers("gpt")
    model = load("gpt", backend=backend)
    output = model(*inputs_of("gpt", arrays, backend))
    gradients = loss_of(output, arrays).backward()
    assert far(output.numpy(), arrays["output"]) < 1e-5
    for path, parameter in model.named_parameters():
        assert far(parameter.grad(gradients).numpy(), arrays[f"grad:{path}"]) < 1e-5


@pytest.mark.parametrize(("name", "learnt"), [("mlp", 0.5), ("cnn", 0.5), ("resnet", 0.5), ("gpt", 0.9)])
def test_a_model_trains(name, learnt):
    arrays = numbers(name)
    model, optimizer = load(name, backend="autodiff(numpy)"), optim.Adam(0.02)
    inputs, target = inputs_of(name, arrays), bb.asarray(np.tanh(arrays["output"]).astype(np.float32))
    losses = []
    for _ in range(20):
        loss = ((model(*inputs) - target) ** 2.0).mean()
        optimizer.step(model, loss.backward())
        losses.append(loss.item())
    assert losses[-1] < learnt * losses[0]


@pytest.mark.parametrize("name", ["resnet", "gpt", "mlp", "encoder"])
def test_a_captured_step_is_replayed(name):
    arrays = numbers(name)

    def step(state, *batch):
        model, optimizer = state
        loss = (model(*batch[:-1]) * batch[-1]).mean()
        optimizer.step(model, loss.backward())
        return state, loss

    def losses(train, backend):
        state = load(name, backend=backend), optim.Adam(0.01)
        inputs = inputs_of(name, arrays, backend)
        probe = bb.asarray(arrays["probe"].astype(np.float32), backend=backend)
        found = []
        for _ in range(5):
            state, loss = train(state, *inputs, probe)
            found.append(loss.item())
        return found

    train = bb.capture(step, on_fallback="error")
    found = losses(train, "autodiff(capture(numpy, join=false))")
    assert repr(train) == "<captured step: replayed>"
    assert found == losses(step, "autodiff(numpy)")


@pytest.mark.parametrize("name", ["mlp", "gpt", "fresh", "llama", "vit"])
def test_other_lengths_of_dynamic_axes(name):
    arrays = numbers(name)
    model = load(name, backend="numpy")
    (x,) = inputs_of(name, arrays, "numpy")
    one, both = model(x[:1]), model(bb.concat([x, x, x]))
    assert far(one.numpy(), arrays["output"][:1]) < 1e-5
    assert far(both.numpy(), np.concatenate([arrays["output"]] * 3)) < 1e-5


def test_loaded_models_keep_no_protobuf_nodes():
    def nodes():
        gc.collect()
        return sum(type(x) is onnx.NodeProto for x in gc.get_objects())

    before = nodes()
    model = load("norms", backend="numpy")
    model(*inputs_of("norms", numbers("norms"), "numpy"))
    assert nodes() == before


def test_vmap_adds_an_axis():
    arrays = numbers("cnn")
    model = load("cnn", backend="autodiff(numpy)")
    (x,) = inputs_of("cnn", arrays)
    found = bb.vmap(lambda x: model(bb.expand_dims(x, 0))[0])(x)
    assert far(found.numpy(), arrays["output"]) < 1e-5


def test_second_derivatives():
    model = load("mlp", backend="autodiff(numpy)").astype("float64")
    bb.check_grads(lambda x: model(x).sum(), (bb.random.normal((2, 4), dtype="float64"),), order=2)


#: Modules with branches that depend on values.
BRANCHES = {"bags", "branch"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*NAMES} - BRANCHES))
def test_files_of_pytorch_are_exported_again(name):
    arrays, model = numbers(name), load(name, backend="autodiff(numpy)")
    inputs = inputs_of(name, arrays)
    proto = bb.onnx.export(model, None, *inputs)
    onnx.checker.check_model(proto, full_check=True)
    loaded = bb.onnx.load(proto, backend="autodiff(numpy)")
    assert {*dict(loaded.named_parameters())} == {*dict(model.named_parameters())}
    assert np.array_equal(loaded(*inputs).numpy(), model(*inputs).numpy())
    if HAS_RUNTIME and name != "bfloat16":
        assert far(run_runtime(proto, inputs)[0], arrays["output"]) < 1e-5
    check_again(proto, loaded, inputs)


@pytest.mark.parametrize("name", sorted(BRANCHES))
def test_branches_that_depend_on_values_are_not_exported_again(name):
    model, inputs = load(name, backend="autodiff(numpy)"), inputs_of(name, numbers(name))
    with pytest.raises(bb.errors.CaptureError, match=r"\(If, opset 20\): export: the model reads values on the host"):
        bb.onnx.export(model, None, *inputs)


def test_computed_shapes_stay_dynamic_when_exported_again():
    model, (x,) = load("gpt", backend="numpy"), inputs_of("gpt", numbers("gpt"), "numpy")
    proto = bb.onnx.export(model, None, x, dynamic={model.input_names[0]: {0: "batch", 1: "time"}})
    assert "Shape" in {node.op_type for node in proto.graph.node}
    loaded, other = bb.onnx.load(proto, backend="numpy"), x[:1, :3]
    assert np.array_equal(loaded(other).numpy(), model(other).numpy())


def test_state_dicts_are_exchanged_between_models():
    first, second = load("gpt", backend="autodiff(numpy)"), load("gpt", backend="autodiff(numpy)")
    state = {path: tensor * 0.5 for path, tensor in first.state_dict().items()}
    second.load_state_dict(state)
    x = bb.asarray([[1, 2, 3]])
    assert not np.array_equal(first(x).numpy(), second(x).numpy())
    first.load_state_dict(second.state_dict())
    assert np.array_equal(first(x).numpy(), second(x).numpy())
