"""What other libraries call what is here: the hint for a name that users of those will try."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import wraps
from inspect import Parameter, getattr_static, signature
from typing import Any, NoReturn

from backburn.base.callers import NAMESPACES
from backburn.base.calls import renamed
from backburn.base.from_burn import BURN
from backburn.base.from_numpy import FORMULAS as OF_NUMPY
from backburn.base.from_numpy import LINES
from backburn.base.from_torch import FORMULAS, LAYERS, ONLY_FUNCTIONS

_IMMUTABLE = "tensors are never changed: the method without the underscore returns a new one"
_NO_COPY = "tensors are never changed, so that none needs a copy"

#: Methods and attributes of tensors.
METHODS = {
    "amax": "x.max(axis)",
    "amin": "x.min(axis)",
    "bmm": "x @ y",
    "bool": "x.astype('bool')",
    "cat": "bb.concat([x, y])",
    "clamp": "x.clip(low, high)",
    "clone": _NO_COPY,
    "contiguous": "nothing: how elements lie in memory is the backend's matter",
    "copy": _NO_COPY,
    "cpu": "x.numpy() for the values on the host, x.to(backend) for another backend",
    "cuda": "x.to('autodiff(cupy:0)')",
    "dim": "x.ndim",
    "dot": "x @ y",
    "double": "x.astype('float64')",
    "eq": "x == y",
    "expand": "x.broadcast_to(shape)",
    "fill": "bb.full_like(x, value)",
    "flags": "nothing: how elements lie in memory is the backend's matter",
    "flat": "x.flatten()",
    "float": "x.astype('float32')",
    "gather": "x.take_along_axis(indices, axis)",
    "ge": "x >= y",
    "grad_fn": "x.is_tracked",
    "gt": "x > y",
    "half": "x.astype('float16')",
    "imag": "bb.imag(x)",
    "index_select": "x.take(indices, axis)",
    "int": "x.astype('int32')",
    "is_leaf": "x.is_require_grad",
    "itemsize": "x.dtype.itemsize",
    "le": "x <= y",
    "long": "x.astype('int64')",
    "lt": "x < y",
    "masked_fill": "x.mask_fill(mask, value)",
    "mm": "x @ y",
    "ne": "x != y",
    "nelement": "x.size",
    "new_ones": "bb.ones(shape, dtype=x.dtype, backend=x.backend)",
    "new_zeros": "bb.zeros(shape, dtype=x.dtype, backend=x.backend)",
    "normal_": "model.weight = bb.nn.parameter(bb.nn.init.normal(x.shape))",
    "numel": "x.size",
    "permute": "x.permute_dims((1, 0))",
    "put": "x.at[indices].set(values)",
    "ravel": "x.flatten()",
    "real": "bb.real(x)",
    "register_hook": "y = x.retain_grad() and y.grad(gradients), or bb.custom_vjp(f), whose backward is given them",
    "requires_grad_": "x = x.require_grad(), which returns a new leaf",
    "strides": "nothing: how elements lie in memory is the backend's matter",
    "t": "x.T",
    "to_numpy": "x.numpy()",
    "tobytes": "x.numpy().tobytes()",
    "transpose": "x.T, x.mT, x.swapaxes(0, 1) or x.permute_dims(axes)",
    "type": "x.astype(dtype)",
    "unbind": "x.unstack(axis)",
    "uniform_": "model.weight = bb.nn.parameter(bb.nn.init.uniform(x.shape, bound))",
    "unsqueeze": "x.expand_dims(axis)",
    "view": "x.reshape(shape)",
}

#: Methods of models.
MODELS = {
    "add_module": "setattr(model, name, module)",
    "apply": "bb.trees.tree_map(f, model), a new model",
    "bfloat16": "model.astype('bfloat16')",
    "children": "model.named_modules()",
    "compile": "bb.capture(step)",
    "cpu": "model.to('autodiff(numpy)')",
    "cuda": "model.to('autodiff(cupy:0)')",
    "double": "model.astype('float64')",
    "float": "model.astype('float32')",
    "half": "model.astype('float16')",
    "modules": "model.named_modules()",
    "named_children": "model.named_modules()",
    "register_forward_hook": "a module around it, whose forward calls it",
    "register_parameter": "model.weight = bb.nn.parameter(tensor)",
    "requires_grad_": "model.require_grad(pattern), or model.freeze(pattern)",
    "zero_grad": "nothing: backward returns gradients, and none are kept in the model",
}

#: Methods of optimizers.
OPTIMIZERS = {
    "add_param_group": "bb.optim.Groups({'*.bias': SGD(0.1), '*': AdamW()}), optimizers by patterns of paths",
    "param_groups": "bb.optim.Groups({'*.bias': SGD(0.1), '*': AdamW()}), optimizers by patterns of paths",
    "zero_grad": "nothing: backward returns gradients, and none are kept in the model",
}


def _of_ranks(hints: Mapping[str, str]) -> dict[str, str]:
    """The hints for names that others have with ``1d``, ``2d`` and ``3d`` behind them."""
    return {f"{name}{rank}d": hint for name, hint in hints.items() for rank in (1, 2, 3)}


#: Functions and other names of the top level and its namespaces.
FUNCTIONS = {
    **FORMULAS,
    **OF_NUMPY,
    **LINES,
    **_of_ranks({
        "AdaptiveMaxPool": "bb.nn.functional.adaptive_max_pool(x, size)",
        "BatchNorm": "bb.nn.BatchNorm(channels)",
        "CircularPad": "bb.nn.Pad(1, mode='wrap')",
        "ConstantPad": "bb.nn.Pad(1, value=value)",
        "InstanceNorm": "bb.nn.InstanceNorm(channels)",
        "ReflectionPad": "bb.nn.Pad(1, mode='reflect')",
        "ReplicationPad": "bb.nn.Pad(1, mode='edge')",
        "ZeroPad": "bb.nn.Pad(1)",
    }),
    "Adadelta": "bb.optim.AdamW(lr) or bb.optim.RMSprop(lr)",
    "Adamax": "bb.optim.AdamW(lr) or bb.optim.RMSprop(lr)",
    "BCELoss": "bb.nn.functional.binary_cross_entropy(x, targets)",
    "BCEWithLogitsLoss": "bb.nn.functional.binary_cross_entropy_with_logits(x, targets)",
    "Buffer": "model.register_buffer(name, tensor)",
    "CosineAnnealingLR": "bb.optim.SGD(bb.optim.schedules.Cosine(0.1, 1000))",
    "CrossEntropyLoss": "bb.nn.functional.cross_entropy(x, targets)",
    "CupyBackend": "bb.load_backend('cupy:0'), or backburn_cupy.CupyBackend",
    "DataLoader": "bb.data.batches(x, y, batch_size=32)",
    "Dropout1d": "bb.nn.functional.dropout(bb.ones((n, channels, 1)), p) * x",
    "Dropout2d": "bb.nn.functional.dropout(bb.ones((n, channels, 1, 1)), p) * x",
    "Dropout3d": "bb.nn.functional.dropout(bb.ones((n, channels, 1, 1, 1)), p) * x",
    "ExponentialLR": "bb.optim.SGD(bb.optim.schedules.Exponential(0.1, 0.9, every=1))",
    "GradGraph": "bb.tape.GradGraph",
    "GradOp": "bb.tape.GradOp",
    "GradientTape": "bb.tape.GradientTape, or that of closures, backburn.tape.closures.GradientTape",
    "L1Loss": "bb.nn.functional.l1_loss(x, targets)",
    "LambdaLR": "bb.optim.SGD(lambda steps: 0.1 / (1 + steps))",
    "LinearLR": "bb.optim.SGD(bb.optim.schedules.Linear(0.1, 0.0, 1000))",
    "MSELoss": "bb.nn.functional.mse_loss(x, targets)",
    "MarginRankingLoss": "bb.mean(bb.relu(margin - targets * (x - y)))",
    "ModuleDict": "a dict of modules as an attribute",
    "NAdam": "bb.optim.AdamW(lr) or bb.optim.RMSprop(lr)",
    "NLLLoss": "bb.nn.functional.nll_loss(x, targets)",
    "NumpyBackend": "bb.load_backend('numpy'), or backburn_numpy.NumpyBackend",
    "OneCycleLR": "bb.optim.SGD(bb.optim.schedules.OneCycle(0.1, 1000))",
    "PairwiseDistance": "bb.linalg.vector_norm(x - y, axis=-1)",
    "Parameter": "bb.nn.parameter(tensor)",
    "ParameterDict": "a dict of parameters as an attribute",
    "ParameterList": "a list of parameters as an attribute",
    "PixelShuffle": "x.reshape((n, c, r, r, h, w)).permute_dims((0, 1, 4, 2, 5, 3)).reshape((n, c, h * r, w * r))",
    "PixelUnshuffle": "x.reshape((n, c, h, r, w, r)).permute_dims((0, 1, 3, 5, 2, 4)).reshape((n, c * r * r, h, w))",
    "RAdam": "bb.optim.AdamW(lr) or bb.optim.RMSprop(lr)",
    "ReduceLROnPlateau": "optimizer.lr = 0.5 * optimizer.lr",
    "RotaryEncoding": "bb.nn.RotaryEmbedding()",
    "SoftMarginLoss": "bb.mean(bb.nn.functional.softplus(-targets * x))",
    "Softmax2d": "bb.nn.Softmax(axis=1)",
    "StepLR": "bb.optim.SGD(bb.optim.schedules.Step(0.1, 0.1, every=30))",
    "TransformerDecoder": "a loop over [bb.nn.TransformerDecoderLayer(size, heads) for _ in range(n)]",
    "TransformerEncoder": "bb.nn.Sequential(*(bb.nn.TransformerEncoderLayer(size, heads) for _ in range(n)))",
    "UpsamplingBilinear2d": "bb.nn.Upsample(scale=2, mode='linear', align_corners=True)",
    "UpsamplingNearest2d": "bb.nn.Upsample(scale=2)",
    "absolute": "bb.abs(x)",
    "amax": "bb.max(x, axis=axis)",
    "amin": "bb.min(x, axis=axis)",
    "append": "bb.concat([x, y])",
    "arccos": "bb.acos(x)",
    "arcsin": "bb.asin(x)",
    "arctan": "bb.atan(x)",
    "arctan2": "bb.atan2(y, x)",
    "argwhere": "bb.stack(bb.nonzero(x), axis=1)",
    "around": "bb.round(x, decimals)",
    "array": "bb.asarray(data)",
    "array_split": "bb.split(x, lengths)",
    "as_tensor": "bb.asarray(data)",
    "amp": "model.astype('bfloat16'), whose steps are computed in float32",
    "autocast": "model.astype('bfloat16'), whose steps are computed in float32",
    "autograd": "bb.grad(f), or x.grad(loss.backward())",
    "average": "bb.mean(x * weights) / bb.mean(weights)",
    "blackman": "bb.fourier.blackman_window(n, periodic=False)",
    "bmm": "x @ y",
    "broadcast_tensors": "bb.broadcast_arrays(x, y)",
    "cat": "bb.concat([x, y])",
    "cbrt": "bb.copysign(bb.abs(x) ** (1 / 3), x)",
    "choice": "bb.take(x, bb.random.integers(shape, 0, n))",
    "clamp": "bb.clip(x, low, high)",
    "clone": "nothing: tensors are never changed",
    "column_stack": "bb.stack([x, y], axis=1) of vectors, bb.concat([x, y], axis=1) of matrices",
    "compile": "bb.capture(step)",
    "concatenate": "bb.concat([x, y])",
    "cross": "bb.linalg.cross(x, y)",
    "cuda": "bb.list_backends(), which tells what can be used here",
    "cumprod": "bb.cumulative_prod(x, axis)",
    "cumsum": "bb.cumulative_sum(x, axis)",
    "custom_gradient": "bb.custom_vjp(f)",
    "custom_jvp": "bb.custom_vjp(f), of which forward mode is made",
    "deg2rad": "x * (bb.pi / 180)",
    "device": "a backend is a device: bb.load_backend(spec)",
    "diag_embed": "x[..., None] * bb.eye(x.shape[-1])",
    "div": "bb.divide(x, y)",
    "dot": "x @ y",
    "double": "bb.float64",
    "dstack": "bb.stack([x, y], axis=2)",
    "enable_grad": "nothing: operations are recorded outside of bb.no_grad()",
    "eq": "x == y",
    "expand": "bb.broadcast_to(x, shape)",
    "fft": "bb.fourier",
    "fix": "bb.trunc(x)",
    "fliplr": "bb.flip(x, axis=1)",
    "flipud": "bb.flip(x, axis=0)",
    "float": "bb.float32",
    "from_numpy": "bb.asarray(array)",
    "func": "bb.grad, bb.vmap, bb.jvp and the others of backburn's transforms",
    "functional_call": "a model is a tree: bb.grad(lambda model: loss(model))(model)",
    "gather": "bb.take_along_axis(x, indices, axis)",
    "ge": "x >= y",
    "get_default_dtype": "bb.default_dtype()",
    "get_rng_state": "bb.random.get_state()",
    "grad_and_value": "bb.value_and_grad(f)",
    "gt": "x > y",
    "half": "bb.float16",
    "hamming": "bb.fourier.hamming_window(n, periodic=False)",
    "hanning": "bb.fourier.hann_window(n, periodic=False)",
    "index_select": "bb.take(x, indices, axis)",
    "inference_mode": "bb.no_grad()",
    "inner": "bb.vecdot(x, y) of vectors, x @ y.mT of matrices",
    "int": "bb.int32",
    "inverse": "bb.linalg.inv(x)",
    "is_floating_point": "x.dtype.kind == 'float'",
    "is_tensor": "isinstance(x, bb.Tensor)",
    "jacfwd": "bb.jacobian(f, mode='forward')",
    "jacrev": "bb.jacobian(f)",
    "jit": "bb.capture(step)",
    "kl_div": "bb.nn.functional.kl_div_loss(x, targets)",
    "le": "x <= y",
    "load": "bb.io.load_model(path)",
    "logit": "bb.log(x / (1 - x))",
    "logspace": "base ** bb.linspace(start, stop, num)",
    "long": "bb.int64",
    "lr_scheduler": "lr may be a function of the number of steps: bb.optim.SGD(bb.optim.schedules.Cosine(0.1, 1000))",
    "lt": "x < y",
    "lu_factor": "bb.linalg.lu(x)",
    "manual_seed": "bb.random.seed(n)",
    "masked_fill": "bb.mask_fill(x, mask, value)",
    "matvec": "bb.vecdot(x, y[..., None, :])",
    "mm": "x @ y",
    "mod": "bb.remainder(x, y)",
    "movedim": "bb.moveaxis(x, source, destination)",
    "mul": "bb.multiply(x, y)",
    "multinomial": "bb.random.categorical(logits)",
    "mv": "x @ y",
    "ndarray": "bb.Tensor",
    "ne": "x != y",
    "neg": "bb.negative(x)",
    "norm": "bb.linalg.vector_norm(x) or bb.linalg.matrix_norm(x)",
    "numel": "x.size",
    "outer": "bb.linalg.outer(x, y)",
    "percentile": "bb.quantile(x, percent / 100)",
    "permute": "bb.permute_dims(x, axes)",
    "pinverse": "bb.linalg.pinv(x)",
    "power": "bb.pow(x, y)",
    "ptp": "bb.max(x) - bb.min(x)",
    "quiet_softmax": "bb.exp(x - bb.logaddexp(bb.logsumexp(x, axis=-1, keepdims=True), 0.0))",
    "rad2deg": "x * (180 / bb.pi)",
    "rand": "bb.random.uniform(shape)",
    "rand_like": "bb.random.uniform(x.shape)",
    "randint": "bb.random.integers(shape, low, high)",
    "randn": "bb.random.normal(shape)",
    "randn_like": "bb.random.normal(x.shape)",
    "randperm": "bb.random.permutation(n)",
    "range": "bb.arange(low, high)",
    "ravel": "bb.flatten(x)",
    "remat": "bb.checkpoint(f)",
    "repeat_interleave": "bb.repeat(x, n)",
    "rot90": "bb.flip(bb.swapaxes(x, 0, 1), axis=0)",
    "round_": "bb.round(x)",
    "save": "bb.io.save_model(path, model.state_dict()), or bb.io.save_state(path, tree) for a whole run",
    "savez": "bb.io.save_npz(path, arrays)",
    "scatter_add": "bb.scatter(x, indices, y, axis=axis, mode='add')",
    "set_default_device": "with bb.use_backend(spec)",
    "set_default_dtype": "with bb.use_dtype('float64')",
    "set_rng_state": "bb.random.set_state(state)",
    "sgn": "bb.sign(x)",
    "softplus": "bb.nn.functional.softplus(x)",
    "solve_triangular": "bb.linalg.triangular_solve(x, y, upper=True)",
    "split_with_sizes": "bb.split(x, lengths)",
    "std_mean": "bb.std(x), bb.mean(x)",
    "sub": "bb.subtract(x, y)",
    "swapdims": "bb.swapaxes(x, 0, 1)",
    "take_along_dim": "bb.take_along_axis(x, indices, axis)",
    "tensor_split": "bb.split(x, lengths)",
    "thresholded_relu": "bb.nn.functional.threshold(x, alpha, 0.0)",
    "transpose": "bb.permute_dims(x, axes), x.T or x.mT",
    "tree": "bb.trees",
    "tree_map": "bb.trees.tree_map(f, tree)",
    "tri": "bb.tril(bb.ones((n, m)))",
    "true_divide": "bb.divide(x, y)",
    "unbind": "bb.unstack(x, axis)",
    "unique": "bb.unique_values(x)",
    "unsqueeze": "bb.expand_dims(x, axis)",
    "utils": "bb.optim.clip_grad_norm(gradients, 1.0), bb.data.batches(x, y, batch_size=32)",
    "var_mean": "bb.var(x), bb.mean(x)",
    "vdot": "bb.vecdot(x, y)",
    "vectorize": "bb.vmap(f)",
}

#: Names of ``nn.functional``, some of which are at the top level here.
FUNCTIONAL = {
    **LAYERS,
    **_of_ranks({
        "adaptive_avg_pool": "bb.nn.functional.adaptive_avg_pool(x, size)",
        "adaptive_max_pool": "bb.nn.functional.adaptive_max_pool(x, size)",
        "avg_pool": "bb.nn.functional.avg_pool(x, size)",
        "conv": "bb.nn.functional.conv(x, weight, bias)",
        "conv_transpose": "bb.nn.functional.conv_transpose(x, weight, bias)",
        "max_pool": "bb.nn.functional.max_pool(x, size)",
    }),
    "bce": "bb.nn.functional.binary_cross_entropy(x, targets)",
    "dropout1d": "bb.nn.functional.dropout(bb.ones((n, channels, 1)), p) * x",
    "dropout2d": "bb.nn.functional.dropout(bb.ones((n, channels, 1, 1)), p) * x",
    "dropout3d": "bb.nn.functional.dropout(bb.ones((n, channels, 1, 1, 1)), p) * x",
    "margin_ranking_loss": "bb.mean(bb.relu(margin - targets * (x - y)))",
    "mse": "bb.nn.functional.mse_loss(x, targets)",
    "one_hot": "bb.one_hot(x, classes)",
    "pad": "bb.pad(x, widths)",
    "pairwise_distance": "bb.linalg.vector_norm(x - y, axis=-1)",
    "pixel_shuffle": "x.reshape((n, c, r, r, h, w)).permute_dims((0, 1, 4, 2, 5, 3)).reshape((n, c, h * r, w * r))",
    "pixel_unshuffle": "x.reshape((n, c, h, r, w, r)).permute_dims((0, 1, 3, 5, 2, 4)).reshape((n, c * r * r, h, w))",
    "soft_margin_loss": "bb.mean(bb.nn.functional.softplus(-targets * x))",
    "upsample": "bb.nn.functional.interpolate(x, size)",
}


class Elsewhere:
    """An attribute that is not there, and says what is.

    It stands in the class: a ``__getattr__`` would cost every attribute of every tensor some time. :class:`Telling`
    and :func:`_present` keep it out of ``dir``.
    """

    __slots__ = ("_hint", "_name")

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, owner: object, cls: type) -> NoReturn:
        words = f"type object {cls.__name__!r}" if owner is None else f"{cls.__name__!r} object"
        raise AttributeError(f"{words} has no attribute {self._name!r}; here: {self._hint}")


class ReadOnly(Elsewhere):
    """One that cannot be set either, where others do so."""

    __slots__ = ()

    def __set__(self, owner: object, value: object) -> NoReturn:
        raise AttributeError(
            f"{self._name!r} of a {type(owner).__name__} cannot be set: tensors are never changed; here: {self._hint}"
        )


class Telling(type):
    """The class of classes whose ``dir`` and ``help`` are without what only tells."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not isinstance(getattr_static(cls, name, None), Elsewhere)]


#: Attributes of tensors that are set in other libraries.
SET = {
    "data": "x.detach() for the values, model.weight = bb.nn.parameter(y) for others",
    "requires_grad": "x.is_require_grad, or x.is_tracked; x.require_grad(), x.detach(), model.freeze() set it",
}


def tell_methods(cls: type) -> None:
    """Let a class tell the names of others' methods, and those of its own that end with an underscore."""
    in_place = [*(n for n in dir(cls) if not n.startswith("_")), "add", "copy", "div", "fill", "mul", "sub", "zero"]
    for name, hint in SET.items():
        setattr(cls, name, ReadOnly(name, hint))
    changing = {f"{n}_": hint for n, hint in (dict.fromkeys(in_place, _IMMUTABLE) | METHODS).items()}
    formulas = {name: hint for name, hint in FUNCTIONS.items() if re.search(r"\bx\b", hint)}
    tell(cls, formulas | ONLY_FUNCTIONS | changing | METHODS | BURN)


def tell(cls: type, hints: Mapping[str, str]) -> None:
    """Let a class tell names that it does not have."""
    for name, hint in hints.items():
        if not hasattr(cls, name):
            setattr(cls, name, Elsewhere(name, hint))
    if "__dir__" not in vars(cls):
        type.__setattr__(cls, "__dir__", _present)


def _present(owner: object) -> list[str]:
    """The names of ``dir(owner)`` without those that only tell others."""
    return [name for name in object.__dir__(owner) if not isinstance(getattr_static(owner, name, None), Elsewhere)]


def tell_options(*values: Any) -> None:
    """Let the errors for arguments that the classes among ``values`` do not take name the class and all that it takes.

    Python's names the class that defines ``__init__``, which may be one that users do not know.
    """
    for value in values:
        if isinstance(value, type) and value.__init__ is not object.__init__:  # type: ignore[misc]
            _tell_options(value)


def _tell_options(cls: type) -> None:
    init: Any = cls.__init__  # type: ignore[misc]

    @wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        try:
            init(self, *args, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within
            fault = str(error).partition("() ")[2]
            quoted = re.search(r"keyword argument '(\w+)'", fault)
            hint = renamed(quoted[1], signature(init)) if quoted else ""
            raise TypeError(f"{cls.__name__}() {fault}{hint}; it takes {cls.__name__}({_options(init)})") from None

    type.__setattr__(cls, "__init__", checked)


def _options(init: Any) -> str:
    """The parameters of a method with their defaults, as they are written in a call."""
    found = [p.replace(annotation=Parameter.empty) for p in list(signature(init).parameters.values())[1:]]
    return ", ".join(map(str, found))


def missing_name(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have."""
    layers = FUNCTIONAL if module.endswith(".functional") else {}
    hint = FUNCTIONS.get(name) or layers.get(name) or _ours(name, module)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; here: {hint}" if hint else ""))


def _ours(name: str, asked: str) -> str | None:
    """A public name that is the same in another namespace, or but for capitals and underscores, as ``relu_`` is.

    The module that was asked comes first: ``nn.Relu`` is ``nn.ReLU`` rather than ``relu``.
    """
    places = sorted(NAMESPACES.items(), key=lambda place: place[0] != asked)
    for same in (str, _plain):
        for module, spoken in places:
            for known in getattr(sys.modules.get(module), "__all__", ()):
                if same(known) == same(name):
                    return f"{spoken}.{known}"
    return None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
