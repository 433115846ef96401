"""What other libraries call what is here: the hint for a name that users of those will try."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from inspect import Parameter, getattr_static, signature
from typing import Any, NoReturn

_IMMUTABLE = "tensors are never changed: the method without the underscore returns a new one"
_NO_COPY = "tensors are never changed, so that none needs a copy"

#: Methods and attributes of tensors.
METHODS = {
    "bmm": "x @ y",
    "bool": "x.astype('bool')",
    "cat": "bb.concat([x, y])",
    "clamp": "x.clip(low, high)",
    "clone": _NO_COPY,
    "contiguous": "nothing: how elements lie in memory is the backend's matter",
    "copy": _NO_COPY,
    "cpu": "x.numpy() for the values on the host, x.to(backend) for another backend",
    "cuda": "x.to('autodiff(cupy:0)')",
    "data": "x.detach()",
    "dim": "x.ndim",
    "dot": "x @ y",
    "double": "x.astype('float64')",
    "eq": "x == y",
    "expand": "x.broadcast_to(shape)",
    "float": "x.astype('float32')",
    "gather": "x.take_along_axis(indices, axis)",
    "ge": "x >= y",
    "grad_fn": "x.is_tracked",
    "gt": "x > y",
    "half": "x.astype('float16')",
    "index_select": "x.take(indices, axis)",
    "int": "x.astype('int32')",
    "le": "x <= y",
    "long": "x.astype('int64')",
    "lt": "x < y",
    "masked_fill": "x.mask_fill(mask, value)",
    "mm": "x @ y",
    "ne": "x != y",
    "nelement": "x.size",
    "numel": "x.size",
    "permute": "x.permute_dims((1, 0))",
    "ravel": "x.flatten()",
    "requires_grad": "x.is_require_grad, or x.is_tracked",
    "requires_grad_": "x = x.require_grad(), which returns a new leaf",
    "t": "x.T",
    "transpose": "x.T, x.mT, x.swapaxes(0, 1) or x.permute_dims(axes)",
    "type": "x.astype(dtype)",
    "unbind": "x.unstack(axis)",
    "unsqueeze": "x.expand_dims(axis)",
    "view": "x.reshape(shape)",
}

#: Methods of models.
MODELS = {
    "apply": "bb.trees.tree_map(f, model), a new model",
    "bfloat16": "model.astype('bfloat16')",
    "children": "model.named_modules()",
    "cpu": "model.to('autodiff(numpy)')",
    "cuda": "model.to('autodiff(cupy:0)')",
    "double": "model.astype('float64')",
    "float": "model.astype('float32')",
    "half": "model.astype('float16')",
    "modules": "model.named_modules()",
    "requires_grad_": "model.require_grad(pattern), or model.freeze(pattern)",
    "zero_grad": "nothing: backward returns gradients, and none are kept in the model",
}

#: Methods of optimizers.
OPTIMIZERS = {
    "param_groups": "bb.optim.Groups({'*.bias': SGD(0.1), '*': AdamW()}), optimizers by patterns of paths",
    "zero_grad": "nothing: backward returns gradients, and none are kept in the model",
}

#: Functions and other names of the top level and its namespaces.
FUNCTIONS = {
    "BCELoss": "bb.nn.functional.binary_cross_entropy(x, targets)",
    "BCEWithLogitsLoss": "bb.nn.functional.binary_cross_entropy_with_logits(x, targets)",
    "BatchNorm1d": "bb.nn.BatchNorm(channels)",
    "BatchNorm2d": "bb.nn.BatchNorm(channels)",
    "BatchNorm3d": "bb.nn.BatchNorm(channels)",
    "CELU": "bb.nn.functional.celu(x)",
    "CrossEntropyLoss": "bb.nn.functional.cross_entropy(x, targets)",
    "DataLoader": "bb.data.batches(x, y, batch_size=32)",
    "GLU": "bb.nn.functional.glu(x)",
    "Hardshrink": "bb.nn.functional.hardshrink(x)",
    "Hardsigmoid": "bb.nn.functional.hard_sigmoid(x)",
    "Hardswish": "bb.nn.functional.hard_swish(x)",
    "Hardtanh": "bb.nn.functional.hardtanh(x)",
    "L1Loss": "bb.nn.functional.l1_loss(x, targets)",
    "LogSigmoid": "bb.nn.functional.log_sigmoid(x)",
    "LogSoftmax": "bb.nn.functional.log_softmax(x)",
    "MSELoss": "bb.nn.functional.mse_loss(x, targets)",
    "Mish": "bb.nn.functional.mish(x)",
    "ModuleDict": "a dict of modules as an attribute",
    "NLLLoss": "bb.nn.functional.nll_loss(x, targets)",
    "PReLU": "bb.nn.functional.prelu(x, slope)",
    "Parameter": "bb.nn.parameter(tensor)",
    "ParameterDict": "a dict of parameters as an attribute",
    "ParameterList": "a list of parameters as an attribute",
    "ReLU6": "bb.nn.functional.relu6(x)",
    "SELU": "bb.nn.functional.selu(x)",
    "Softmin": "bb.nn.functional.softmin(x)",
    "Softplus": "bb.nn.functional.softplus(x)",
    "Softshrink": "bb.nn.functional.softshrink(x)",
    "Softsign": "bb.nn.functional.softsign(x)",
    "Tanhshrink": "bb.nn.functional.tanhshrink(x)",
    "Threshold": "bb.nn.functional.threshold(x, threshold, value)",
    "absolute": "bb.abs(x)",
    "amax": "bb.max(x, axis=axis)",
    "amin": "bb.min(x, axis=axis)",
    "append": "bb.concat([x, y])",
    "arccos": "bb.acos(x)",
    "arcsin": "bb.asin(x)",
    "arctan": "bb.atan(x)",
    "arctan2": "bb.atan2(y, x)",
    "around": "bb.round(x)",
    "array": "bb.asarray(data)",
    "array_equal": "bb.all(bb.equal(x, y))",
    "as_tensor": "bb.asarray(data)",
    "autograd": "bb.grad(f), or x.grad(loss.backward())",
    "average": "bb.mean(x * weights) / bb.mean(weights)",
    "bmm": "x @ y",
    "cat": "bb.concat([x, y])",
    "cbrt": "bb.copysign(bb.abs(x) ** (1 / 3), x)",
    "choice": "bb.take(x, bb.random.integers(shape, 0, n))",
    "clamp": "bb.clip(x, low, high)",
    "column_stack": "bb.stack([x, y], axis=1)",
    "compile": "bb.capture(step)",
    "concatenate": "bb.concat([x, y])",
    "cross": "bb.linalg.cross(x, y)",
    "cumprod": "bb.cumulative_prod(x, axis)",
    "cumsum": "bb.cumulative_sum(x, axis)",
    "custom_gradient": "bb.custom_vjp(f)",
    "custom_jvp": "bb.custom_vjp(f), of which forward mode is made",
    "deg2rad": "x * (bb.pi / 180)",
    "device": "a backend is a device: bb.load_backend(spec)",
    "digitize": "bb.searchsorted(edges, x)",
    "div": "bb.divide(x, y)",
    "dot": "x @ y",
    "double": "bb.float64",
    "dstack": "bb.stack([x, y], axis=2)",
    "enable_grad": "nothing: operations are recorded outside of bb.no_grad()",
    "expand": "bb.broadcast_to(x, shape)",
    "fft": "bb.fourier",
    "fliplr": "bb.flip(x, axis=1)",
    "flipud": "bb.flip(x, axis=0)",
    "float": "bb.float32",
    "from_numpy": "bb.asarray(array)",
    "func": "bb.grad, bb.vmap, bb.jvp and the others of backburn's transforms",
    "functional_call": "a model is a tree: bb.grad(lambda model: loss(model))(model)",
    "gather": "bb.take_along_axis(x, indices, axis)",
    "get_default_dtype": "bb.default_dtype()",
    "grad_and_value": "bb.value_and_grad(f)",
    "half": "bb.float16",
    "hstack": "bb.concat([x, y], 1)",
    "index_select": "bb.take(x, indices, axis)",
    "inference_mode": "bb.no_grad()",
    "inner": "bb.vecdot(x, y)",
    "int": "bb.int32",
    "is_tensor": "isinstance(x, bb.Tensor)",
    "jacfwd": "bb.jacobian(f, mode='forward')",
    "jacrev": "bb.jacobian(f)",
    "jit": "bb.capture(step)",
    "load": "bb.io.load_model(path)",
    "long": "bb.int64",
    "lr_scheduler": "lr may be a function of the number of steps: bb.optim.SGD(bb.optim.schedules.Cosine(0.1, 1000))",
    "manual_seed": "bb.random.seed(n)",
    "mm": "x @ y",
    "mod": "bb.remainder(x, y)",
    "mul": "bb.multiply(x, y)",
    "multinomial": "bb.random.categorical(logits)",
    "nan_to_num": "bb.where(bb.isnan(x), 0.0, x)",
    "nanmean": "bb.mean(x[~bb.isnan(x)])",
    "nansum": "bb.sum(bb.where(bb.isnan(x), 0.0, x))",
    "ndarray": "bb.Tensor",
    "neg": "bb.negative(x)",
    "norm": "bb.linalg.vector_norm(x) or bb.linalg.matrix_norm(x)",
    "numel": "x.size",
    "outer": "bb.linalg.outer(x, y)",
    "percentile": "bb.quantile(x, percent / 100)",
    "permute": "bb.permute_dims(x, axes)",
    "power": "bb.pow(x, y)",
    "ptp": "bb.max(x) - bb.min(x)",
    "rad2deg": "x * (180 / bb.pi)",
    "rand": "bb.random.uniform(shape)",
    "randint": "bb.random.integers(shape, low, high)",
    "randn": "bb.random.normal(shape)",
    "randperm": "bb.random.permutation(n)",
    "ravel": "bb.flatten(x)",
    "remat": "bb.checkpoint(f)",
    "rot90": "bb.flip(bb.swapaxes(x, 0, 1), axis=0)",
    "round_": "bb.round(x)",
    "save": "bb.io.save_model(path, state)",
    "savez": "bb.io.save_npz(path, arrays)",
    "set_default_dtype": "with bb.use_dtype('float64')",
    "softplus": "bb.nn.functional.softplus(x)",
    "sub": "bb.subtract(x, y)",
    "transpose": "bb.permute_dims(x, axes), x.T or x.mT",
    "tree": "bb.trees",
    "tree_map": "bb.trees.tree_map(f, tree)",
    "tri": "bb.tril(bb.ones((n, m)))",
    "unbind": "bb.unstack(x, axis)",
    "unique": "bb.unique_values(x)",
    "unsqueeze": "bb.expand_dims(x, axis)",
    "vdot": "bb.vecdot(x, y)",
    "vectorize": "bb.vmap(f)",
    "vstack": "bb.concat([x, y], 0)",
}

#: Names of ``nn.functional``, some of which are at the top level here.
FUNCTIONAL = {
    "adaptive_avg_pool2d": "bb.nn.functional.adaptive_avg_pool(x, size)",
    "avg_pool2d": "bb.nn.functional.avg_pool(x, size)",
    "conv1d": "bb.nn.functional.conv(x, weight, bias)",
    "conv2d": "bb.nn.functional.conv(x, weight, bias)",
    "conv3d": "bb.nn.functional.conv(x, weight, bias)",
    "max_pool2d": "bb.nn.functional.max_pool(x, size)",
    "one_hot": "bb.one_hot(x, classes)",
    "pad": "bb.pad(x, widths)",
}


class Elsewhere:
    """An attribute that is not there, and says what is.

    It stands in the class: a ``__getattr__`` would cost every attribute of every tensor some time.
    """

    __slots__ = ("_hint", "_name")

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, owner: object, cls: type) -> NoReturn:
        words = f"type object {cls.__name__!r}" if owner is None else f"{cls.__name__!r} object"
        raise AttributeError(f"{words} has no attribute {self._name!r}; here: {self._hint}")


def tell_methods(cls: type) -> None:
    """Let a class tell the names of :data:`METHODS`, and those of its own methods that end with an underscore."""
    in_place = [*(n for n in dir(cls) if not n.startswith("_")), "add", "copy", "div", "fill", "mul", "sub", "zero"]
    tell(cls, {**{f"{n}_": _IMMUTABLE for n in in_place}, **METHODS})


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
            raise TypeError(f"{cls.__name__}() {fault}; it takes {cls.__name__}({_options(init)})") from None

    type.__setattr__(cls, "__init__", checked)


def _options(init: Any) -> str:
    """The parameters of a method with their defaults, as they are written in a call."""
    found = [p.replace(annotation=Parameter.empty) for p in list(signature(init).parameters.values())[1:]]
    return ", ".join(map(str, found))


def missing_name(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have."""
    hint = FUNCTIONS.get(name) or (FUNCTIONAL.get(name) if module.endswith(".functional") else None)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; here: {hint}" if hint else ""))
