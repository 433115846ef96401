"""Weight and spectral normalization of layers: values and gradients against PyTorch, and use in models."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import normal

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import ArgumentError, AxisError, GraphError

LAYERS: list[Any] = [
    pytest.param(lambda: nn.Linear(3, 4), lambda t: t.nn.Linear(3, 4), 0, (5, 3), id="linear"),
    pytest.param(lambda: nn.Conv2d(2, 4, 3), lambda t: t.nn.Conv2d(2, 4, 3), 0, (2, 2, 5, 6), id="conv"),
    pytest.param(
        lambda: nn.Conv1d(4, 6, 3, groups=2), lambda t: t.nn.Conv1d(4, 6, 3, groups=2), 0, (2, 4, 5), id="groups"
    ),
    pytest.param(
        lambda: nn.ConvTranspose1d(2, 4, 3), lambda t: t.nn.ConvTranspose1d(2, 4, 3), 1, (2, 2, 5), id="transposed"
    ),
    pytest.param(lambda: nn.Bilinear(3, 2, 4), lambda t: t.nn.Bilinear(3, 2, 4), 0, (5, 3), id="bilinear"),
]  # fmt: skip


class Pair:
    """Our layer and PyTorch's with the same parameters, and inputs for both."""

    def __init__(self, torch: Any, ours: Any, theirs: Any, shape: tuple[int, ...]) -> None:
        self.torch, self.ours, self.theirs = torch, ours, theirs
        self.inputs = [normal(*shape)]
        if isinstance(ours.layer, nn.Bilinear):
            self.inputs.append(normal(shape[0], 2))
        self._same(theirs.bias, ours.layer.bias.numpy())

    def _same(self, theirs: Any, value: Any) -> None:
        with self.torch.no_grad():
            theirs.copy_(self.torch.from_numpy(np.array(value)))

    def agree(self, parameters: dict[str, Any]) -> None:
        """Compare results, and gradients of the inputs and of the parameters, keyed by our paths."""
        torch = self.torch
        x = [bb.asarray(a).require_grad() for a in self.inputs]
        y = [torch.from_numpy(a).requires_grad_() for a in self.inputs]
        got, expected = self.ours(*x), self.theirs(*y)
        np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-11)
        weight = np.cos(np.arange(got.size)).reshape(got.shape)
        gradients = (got * bb.asarray(weight)).sum().backward()
        self.theirs.zero_grad()
        (expected * torch.from_numpy(weight)).sum().backward()
        named = dict(self.ours.named_parameters())
        assert set(named) == {*parameters, "layer.bias"}
        for path, theirs in parameters.items():
            found = named[path].grad(gradients).numpy()
            np.testing.assert_allclose(found, theirs.grad.numpy(), rtol=1e-7, atol=1e-10)
        for ours, theirs in zip(x, y, strict=True):
            np.testing.assert_allclose(ours.grad(gradients).numpy(), theirs.grad.numpy(), rtol=1e-7, atol=1e-10)


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    before = module.get_default_dtype()
    module.set_default_dtype(module.float64)
    yield module
    module.set_default_dtype(before)


@pytest.fixture(autouse=True)
def _doubles() -> Any:
    with bb.use_dtype("float64"):
        yield


@pytest.mark.parametrize(("ours", "theirs", "axis", "shape"), LAYERS)
@pytest.mark.parametrize("whole", [False, True])
def test_weight_norm_is_that_of_pytorch(
    torch: Any, ours: Any, theirs: Any, axis: int, shape: tuple[int, ...], whole: bool
) -> None:
    layer = ours()
    made = nn.WeightNorm(layer, axis=None) if whole else nn.WeightNorm(layer)
    np.testing.assert_allclose(made.weight.numpy(), layer.weight.numpy(), rtol=1e-13)
    norm = torch.nn.utils.parametrizations.weight_norm
    other = norm(theirs(torch), dim=None if whole else axis)
    pair, parts = Pair(torch, made, other, shape), other.parametrizations.weight
    made.magnitude = bb.asarray(1.0 + normal(*made.magnitude.shape) ** 2).require_grad()  # not the norms
    pair._same(parts.original1, made.direction.numpy())
    pair._same(parts.original0, made.magnitude.numpy().reshape(parts.original0.shape))
    pair.agree({"magnitude": parts.original0, "direction": parts.original1})


@pytest.mark.parametrize(("ours", "theirs", "axis", "shape"), LAYERS)
@pytest.mark.parametrize("times", [1, 3])
def test_spectral_norm_is_that_of_pytorch(
    torch: Any, ours: Any, theirs: Any, axis: int, shape: tuple[int, ...], times: int
) -> None:
    """Three calls in training mode and two in evaluation mode."""
    made = nn.SpectralNorm(ours(), n_power_iterations=times)
    norm = torch.nn.utils.parametrizations.spectral_norm
    other = norm(theirs(torch), n_power_iterations=times, dim=axis)
    pair, part = Pair(torch, made, other, shape), other.parametrizations.weight[0]
    made.original = bb.asarray(normal(*made.original.shape)).require_grad()  # with other singular vectors
    pair._same(other.parametrizations.weight.original, made.original.numpy())
    pair._same(part._u, made.u.numpy())
    pair._same(part._v, made.v.numpy())
    for training in (True, True, True, False, False):
        made.train(training)
        other.train(training)
        before = made.u
        pair.agree({"original": other.parametrizations.weight.original})
        assert (made.u is before) == (not training)
        np.testing.assert_allclose(made.u.numpy(), part._u.numpy(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(made.v.numpy(), part._v.numpy(), rtol=1e-9, atol=1e-12)


KINDS: list[Any] = [nn.WeightNorm, nn.SpectralNorm]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (lambda: nn.Linear(3, 2), np.ones((2, 3))),
        (lambda: nn.Conv1d(2, 3, 2), np.ones((1, 2, 4))),
        (lambda: nn.Embedding(4, 3), np.array([[0, 3, 3], [1, 2, 0]])),
    ],
)
def test_derivatives_are_exact_at_second_order(kind: Any, layer: Any, x: Any) -> None:
    inputs = bb.asarray(x)
    bb.check_grads(lambda model: (model(inputs) ** 3.0).sum(), (kind(layer()).eval(),), order=2)


@pytest.mark.parametrize("kind", KINDS)
def test_models_with_normalized_layers_are_trained_saved_and_copied(kind: Any) -> None:
    def make() -> Any:
        return nn.Sequential(kind(nn.Linear(3, 8)), nn.Tanh(), kind(nn.Linear(8, 1)))

    bb.random.seed(0)
    x = bb.asarray(normal(16, 3))
    y, model, optimizer, losses = 0.5 * x[:, :1], make(), optim.Adam(0.05), []
    for _ in range(40):
        loss = ((model(x) - y) ** 2.0).mean()
        optimizer.step(model, loss.backward())
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    again, copied = make().eval(), copy.deepcopy(model)
    again.load_state_dict(model.state_dict())
    expected = model(x).numpy()
    for other in (again, copied, model.to("numpy"), model[:2]):
        inputs = x.to("numpy") if other.parameters()[0].backend.spec == "numpy" else x
        out = other(inputs) if len(other) == 3 else model[2](other(inputs))
        np.testing.assert_array_equal(out.numpy(), expected)
    plain = nn.Sequential(model[0].plain(), model[1], model[2].plain())
    np.testing.assert_allclose(plain(x).numpy(), expected, rtol=1e-13)
    assert [path for path, p in plain.named_parameters() if p.is_require_grad] == [
        "0.weight", "0.bias", "2.weight", "2.bias",
    ]  # fmt: skip


def test_the_largest_singular_value_is_1() -> None:
    layer = nn.Conv2d(3, 4, 3)
    made = nn.SpectralNorm(layer, n_power_iterations=50)
    made(bb.ones((1, 3, 4, 4)))
    values = np.linalg.svd(layer.weight.numpy().reshape(4, -1), compute_uv=False)
    found = np.linalg.svd(made.weight.numpy().reshape(4, -1), compute_uv=False)
    np.testing.assert_allclose(found, values / values[0], rtol=1e-6)
    assert [name for name, _ in made.named_buffers()] == ["u", "v"]
    one = nn.SpectralNorm(nn.PReLU(3), "weight")
    one.original = bb.asarray([1.0, 2.0, 2.0]).require_grad()
    assert one.weight.tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert one(bb.asarray([[-3.0, 3.0, -3.0]])).tolist() == [pytest.approx([-1.0, 3.0, -2.0])]
    assert one.named_buffers() == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_keeps_its_dtype_and_whether_it_is_frozen(kind: Any, dtype: str) -> None:
    layer = nn.Linear(3, 2).astype(dtype).freeze("weight")
    made = kind(layer)
    assert {str(x.dtype) for x in made.state_dict().values()} == {dtype}
    assert [path for path, x in made.named_parameters() if x.is_require_grad] == ["layer.bias"]
    out = made(bb.ones((2, 3), dtype=dtype))
    assert str(out.dtype) == dtype
    assert not made.plain().weight.is_require_grad
    assert layer.weight is not None


def test_normalizing_another_parameter_of_a_layer() -> None:
    made: Any = nn.WeightNorm(nn.WeightNorm(nn.Linear(3, 2)), name="magnitude", axis=0)
    assert [path for path, _ in made.named_parameters()] == [
        "layer.layer.bias", "layer.direction", "magnitude", "direction",
    ]  # fmt: skip
    bias = made.layer.layer.bias.numpy()
    np.testing.assert_allclose(made(bb.ones((1, 3))).numpy(), made.layer.direction.numpy().sum(1)[None] + bias)
    made.magnitude = bb.zeros((2, 1))
    np.testing.assert_array_equal(made(bb.ones((1, 3))).numpy(), bias[None])


def test_transforms_of_normalized_layers() -> None:
    model, x = nn.SpectralNorm(nn.Linear(3, 2)), bb.asarray(normal(5, 3))
    other = copy.deepcopy(model)
    slopes = bb.grad(lambda model: (model(x) ** 2.0).sum())(model)
    found = optim.named_gradients(other, (other(x) ** 2.0).sum().backward())
    np.testing.assert_allclose(slopes.original.numpy(), found["original"].numpy(), rtol=1e-12)
    np.testing.assert_array_equal(model.u.numpy(), other.u.numpy())
    assert model.u.backend is other.u.backend
    each = bb.vmap(lambda row: model(row[None])[0])(x)
    np.testing.assert_allclose(each.numpy(), model.eval()(x).numpy(), rtol=1e-12)
    models = bb.trees.tree_map(lambda leaf: bb.stack([leaf, leaf * 2.0]), model.inner())
    stacked = bb.vmap(lambda model: model(bb.ones((1, 3), backend="numpy")))
    assert stacked(models).shape == (2, 1, 2)
    with pytest.raises(GraphError, match="the singular vectors differ between the examples of vmap"):
        bb.vmap(lambda w: _training(model, w)(bb.ones((1, 3))))(bb.asarray(normal(2, 3, 2)))


def _training(model: Any, original: Any) -> Any:
    made = copy.copy(model)
    vars(made).update(original=original, training=True)
    return made


def test_quantization_skips_normalized_layers() -> None:
    model: Any = nn.Sequential(nn.WeightNorm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))
    quantized = nn.quantize_model(model)
    assert [type(layer).__name__ for layer in quantized] == ["WeightNorm", "ReLU", "QuantizedLinear"]
    plain = nn.Sequential(model[0].plain(), *model[1:])
    assert type(nn.quantize_model(plain)[0]).__name__ == "QuantizedLinear"


def test_errors_name_what_is_wrong() -> None:
    wrong: Any = 3
    for kind in KINDS:
        name = kind.__name__
        cases: list[tuple[Any, str]] = [
            (lambda kind=kind: kind(wrong), f"{name}: takes a layer, such as {name}.Linear.3, 2.., not int"),
            (lambda kind=kind: kind(nn.Linear(3, 2), "weigth"), f"{name}: Linear has no parameter 'weigth'. Did you"),
            (lambda kind=kind: kind(nn.Linear(3, 2, bias=False), "bias"), f"{name}: Linear has no parameter 'bias'"),
        ]
        for make, words in cases:
            with pytest.raises(ArgumentError, match=words):
                make()
        with pytest.raises(AxisError, match=name):
            kind(nn.Linear(3, 2), axis=2)
    with pytest.raises(ArgumentError, match="WeightNorm: the output axis of 'weight' is not known for a LayerNorm"):
        nn.WeightNorm(nn.LayerNorm(3))
    with pytest.raises(ArgumentError, match="SpectralNorm: n_power_iterations is an integer of at least 1, not 0"):
        nn.SpectralNorm(nn.Linear(3, 2), n_power_iterations=0)
    with pytest.raises(ArgumentError, match="SpectralNorm: axis is a number or 'outputs', not None"):
        nn.SpectralNorm(nn.Linear(3, 2), axis=None)  # type: ignore[arg-type]
