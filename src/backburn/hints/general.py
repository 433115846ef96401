"""Hints for names of other libraries, as tables with the replacement for each; see :mod:`backburn.hints`."""

from __future__ import annotations

from collections.abc import Mapping

from backburn.hints.burn import MODELS as OF_BURN_MODELS
from backburn.hints.burn import NAMES as OF_BURN
from backburn.hints.burn import OPTIMIZERS as OF_BURN_OPTIMIZERS
from backburn.hints.numpy import FORMULAS as OF_NUMPY
from backburn.hints.numpy import LINES, MEMORY
from backburn.hints.torch import FORMULAS, LAYERS

IMMUTABLE = "tensors are never changed: the method without the underscore returns a new one"
_NO_COPY = "tensors are never changed, so no copy is needed"

#: Methods and attributes of tensors.
METHODS = {
    **dict.fromkeys(("contiguous", "data_ptr", "flags", "is_contiguous", "stride", "strides"), MEMORY),
    **dict.fromkeys(("to_dense", "to_sparse"), "nothing: there are no sparse tensors"),
    "H": "bb.conj(x).T",
    "bool": "x.astype('bool')",
    "clone": _NO_COPY,
    "copy": _NO_COPY,
    "cpu": "x.numpy() for the values on the host, x.to(backend) for another backend",
    "cuda": "x.to('autodiff(cupy:0)')",
    "dim": "x.ndim",
    "double": "x.astype('float64')",
    "fill": "bb.full_like(x, value)",
    "flat": "x.flatten()",
    "float": "x.astype('float32')",
    "get_device": "x.backend",
    "grad_fn": "x.is_tracked",
    "half": "x.astype('float16')",
    "imag": "bb.imag(x)",
    "int": "x.astype('int32')",
    "is_cuda": "x.backend.device",
    "is_leaf": "x.is_require_grad",
    "is_nonzero": "bool(x)",
    "itemsize": "x.dtype.itemsize",
    "less": "x < y",
    "less_equal": "x <= y",
    "long": "x.astype('int64')",
    "mH": "bb.conj(x).mT",
    "nelement": "x.size",
    "new_ones": "bb.ones(shape, dtype=x.dtype, backend=x.backend)",
    "new_zeros": "bb.zeros(shape, dtype=x.dtype, backend=x.backend)",
    "normal_": "model.weight = bb.nn.parameter(bb.nn.init.normal(x.shape))",
    "pin_memory": "nothing: the backend decides how data are copied",
    "positive": "+x",
    "real": "bb.real(x)",
    "register_hook": "y = x.retain_grad() and y.grad(gradients), or bb.custom_vjp(f), whose backward receives them",
    "requires_grad_": "x = x.require_grad(), which returns a new leaf",
    "to_numpy": "x.numpy()",
    "tobytes": "x.numpy().tobytes()",
    "transpose": "x.T, x.mT, x.swapaxes(0, 1) or x.permute_dims(axes)",
    "type": "x.astype(dtype)",
    "uniform_": "model.weight = bb.nn.parameter(bb.nn.init.uniform(x.shape, a, b))",
    "view": "x.reshape(shape)",
}

#: Methods of models.
MODELS = {
    **OF_BURN_MODELS,
    "add_module": "setattr(model, name, module)",
    "apply": "for _, layer in model.named_modules(): f(layer); or bb.trees.tree_map(f, model) of its tensors",
    "bfloat16": "model.astype('bfloat16')",
    "buffers": "model.named_buffers()",
    "children": "model.named_modules()",
    "compile": "bb.capture(step)",
    "fit": "bb.train.fit(model, loss, data)",
    "generate": "bb.models.generate(model, prompt)",
    "predict": "model.eval()(x), or bb.train.predict(model, x) in batches",
    "cpu": "model.to('autodiff(numpy)')",
    "cuda": "model.to('autodiff(cupy:0)')",
    "device": "model.parameters()[0].backend",
    "double": "model.astype('float64')",
    "extend": "for module in modules: layers.append(module)",
    "float": "model.astype('float32')",
    "get_buffer": "dict(model.named_buffers())[path]",
    "get_parameter": "dict(model.named_parameters())[path]",
    "get_submodule": "dict(model.named_modules())[path]",
    "half": "model.astype('float16')",
    "in_features": "layer.weight.shape[1] of a Linear",
    "insert": "bb.nn.Sequential(*layers[:i], module, *layers[i:])",
    "load_weights": "bb.io.load_weights(model, path)",
    "save_weights": "bb.io.save_weights(model, path)",
    "modules": "model.named_modules()",
    "named_children": "model.named_modules()",
    "out_features": "layer.weight.shape[0] of a Linear",
    "pop": "layers[:-1], without the last",
    **dict.fromkeys(("summary", "tabulate"), "bb.nn.summary(model, x)"),
    **dict.fromkeys(
        ("register_forward_hook", "register_forward_pre_hook"), "a module around it, whose forward calls it"
    ),
    "register_full_backward_hook": "bb.custom_vjp(f) after the layer, whose backward calls it",
    "register_parameter": "model.weight = bb.nn.parameter(tensor)",
    "requires_grad_": "model.require_grad(pattern), or model.freeze(pattern)",
    "reset_parameters": "a new layer, or layer.weight = bb.nn.parameter(bb.nn.init.xavier_uniform(layer.weight.shape))",
    "type": "model.astype(dtype)",
    "zero_grad": "nothing: backward returns gradients, and none are kept in the model",
}

#: Methods of optimizers.
OPTIMIZERS = {
    **OF_BURN_OPTIMIZERS,
    "add_param_group": "bb.optim.Groups({'*.bias': SGD(0.1), '*': AdamW()}), optimizers by patterns of paths",
    "param_groups": "optimizer.lr, or optimizer.lr(optimizer.steps) of a schedule; for several groups, "
    "bb.optim.Groups({'*.bias': SGD(0.1), '*': AdamW()})",
    "zero_grad": "nothing: backward returns gradients, and none are kept in the model",
}

#: Methods of the gradients that ``backward`` returns.
GRADIENTS: dict[str, str] = dict.fromkeys(
    ("get", "items", "keys", "values"), "bb.optim.named_gradients(model, gradients), a dict by path"
)

#: Methods of random generators.
GENERATORS = {
    **{
        name: f"bb.random.{name}(shape, generator=generator)"
        for name in ("gamma", "integers", "normal", "poisson", "uniform")
    },
    "choice": "bb.random.choice(x, shape, generator=generator)",
    "get_state": "generator.state()",
    "initial_seed": "generator.key",
    "manual_seed": "generator.seed(seed)",
    "permutation": "bb.random.permutation(x, generator=generator)",
    "random": "bb.random.uniform(shape, generator=generator)",
    "shuffle": "bb.random.permutation(x, generator=generator)",
    "standard_normal": "bb.random.normal(shape, generator=generator)",
}


def _of_ranks(hints: Mapping[str, str]) -> dict[str, str]:
    """The hints for names that end with ``1d``, ``2d`` and ``3d`` elsewhere."""
    return {f"{name}{rank}d": hint for name, hint in hints.items() for rank in (1, 2, 3)}


#: Layers, each with its function in ``nn.functional``.
_LAYERS = {
    ("MarginRankingLoss", "margin_ranking_loss"): "bb.mean(bb.relu(margin - targets * (x - y)))",
    ("PairwiseDistance", "pairwise_distance"): "bb.linalg.vector_norm(x - y, axis=-1)",
    ("PixelShuffle", "pixel_shuffle"): "x.reshape((n, c, r, r, h, w)).permute_dims((0, 1, 4, 2, 5, 3))"
    ".reshape((n, c, h * r, w * r))",
    ("PixelUnshuffle", "pixel_unshuffle"): "x.reshape((n, c, h, r, w, r)).permute_dims((0, 1, 3, 5, 2, 4))"
    ".reshape((n, c * r * r, h, w))",
    ("SoftMarginLoss", "soft_margin_loss"): "bb.mean(bb.nn.functional.softplus(-targets * x))",
}

#: Functions and other names of the top level and its namespaces.
FUNCTIONS = {
    **{layer: hint for (layer, _), hint in _LAYERS.items()},
    **{
        f"{name}{end}": f"bb.optim.SGD({rate})"
        for name, rate in {
            "CosineAnnealing": "bb.optim.schedules.Cosine(0.1, 1000)",
            "Exponential": "bb.optim.schedules.Exponential(0.1, 0.9)",
            "Linear": "bb.optim.schedules.Linear(0.1, 0.0, 1000)",
            "Sequential": "lambda steps: first(steps) if steps < 100 else second(steps - 100)",
            "Step": "bb.optim.schedules.Step(0.1, step_size=30)",
        }.items()
        for end in ("LR", "LrScheduler")
    },
    **dict.fromkeys(("DataLoader", "DataLoaderBuilder", "TensorDataset"), "bb.data.batches(x, y, batch_size=32)"),
    "ImageFolder": "bb.data.image_folder(path, size=64)",
    **dict.fromkeys(("Shape", "Size"), "tuple"),
    **dict.fromkeys(
        ("amp", "autocast"),
        "bb.train.fit(model, loss, data, precision='bfloat16'), or bb.train.Precision('bfloat16') in your own loop",
    ),
    **dict.fromkeys(
        ("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSequenceClassification"),
        "bb.models.from_pretrained(folder)",
    ),
    "AutoTokenizer": "bb.models.Tokenizer(folder)",
    "pipeline": "bb.models.generate(model, prompt), with model = bb.models.from_pretrained(folder)",
    **dict.fromkeys(
        ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "init_process_group"),
        "bb.distributed.mesh(dp=2), given to bb.train.fit(model, loss, data, mesh=mesh)",
    ),
    **dict.fromkeys(("genfromtxt", "loadtxt", "read_csv", "read_parquet"), "bb.data.read_table(path)"),
    "train_test_split": "bb.data.hold_out(x, y, parts=5, seed=0)",
    "load_iris": "bb.data.read_table(path) of a file; bb.data.load_digits() is the included data set",
    **dict.fromkeys(("append", "cat", "concatenate"), "bb.concat([x, y])"),
    **dict.fromkeys(("array", "as_tensor", "asanyarray"), "bb.asarray(data)"),
    **dict.fromkeys(("array_split", "split_with_sizes", "tensor_split"), "bb.split(x, lengths)"),
    **dict.fromkeys(("bmm", "dot", "mm", "mv"), "x @ y"),
    **dict.fromkeys(("clone", "copy"), "nothing: tensors are never changed"),
    "deg2rad": OF_NUMPY["radians"],
    "rad2deg": OF_NUMPY["degrees"],
    **dict.fromkeys(("div", "true_divide"), "x / y"),
    **dict.fromkeys(
        ("enable_grad", "is_grad_enabled", "set_grad_enabled"),
        "nothing: operations are recorded outside of bb.no_grad()",
    ),
    **dict.fromkeys(("gather", "take_along_dim"), "x.take_along_axis(indices, axis)"),
    **dict.fromkeys(("set_backend", "set_default_backend", "set_default_device"), "with bb.use_backend(spec)"),
    "from_numpy": "bb.asarray(array)",
    "swapdims": "bb.swapaxes(x, 0, 1)",
    **FORMULAS,
    **OF_NUMPY,
    **LINES,
    **OF_BURN,
    **_of_ranks(
        {
            "CircularPad": "bb.nn.Pad(1, mode='wrap')",
            "ConstantPad": "bb.nn.Pad(1, value=value)",
            "ReflectionPad": "bb.nn.Pad(1, mode='reflect')",
            "ReplicationPad": "bb.nn.Pad(1, mode='edge')",
            "ZeroPad": "bb.nn.Pad(1)",
        }
    ),
    "BCELoss": "bb.nn.functional.binary_cross_entropy(x, targets)",
    "BCEWithLogitsLoss": "bb.nn.functional.binary_cross_entropy_with_logits(x, targets)",
    "Buffer": "model.register_buffer(name, tensor)",
    "ConstantLR": "bb.optim.SGD(lambda steps: 0.1 if steps < 5 else 0.3)",
    "CosineAnnealingWarmRestarts": "bb.optim.SGD(bb.optim.schedules.CosineWarmRestarts(0.1, 1000))",
    "CrossEntropyLoss": "bb.nn.functional.cross_entropy(x, targets)",
    "CupyBackend": "bb.load_backend('cupy:0'), or backburn_cupy.CupyBackend",
    "CyclicLR": "bb.optim.SGD(lambda steps: 0.1 - 0.09 * abs(steps / 1000 % 2 - 1))",
    "Dataset": "bb.data.batches(x, y, batch_size=32) of arrays; any iterator over arrays works too",
    "GradGraph": "bb.tape.GradGraph",
    "GradOp": "bb.tape.GradOp",
    "GradientTape": "bb.tape.GradientTape, or that of closures, backburn.tape.closures.GradientTape",
    "GradScaler": "bb.train.Precision('float16'), which scales the loss; bfloat16 needs no scale",
    "IterableDataset": "any iterator over arrays: bb.asarray(batch) makes a tensor",
    "LambdaLR": "bb.optim.SGD(lambda steps: 0.1 / (1 + steps))",
    "LazyLinear": "bb.nn.Linear(in_features, out_features)",
    "ModuleDict": "a dict of modules as an attribute",
    "MultiplicativeLR": "bb.optim.SGD(bb.optim.schedules.Exponential(0.1, 0.9))",
    "MultiStepLR": "bb.optim.SGD(bb.optim.schedules.MultiStep(0.1, milestones=(30, 80)))",
    "NumpyBackend": "bb.load_backend('numpy'), or backburn_numpy.NumpyBackend",
    "OneCycleLR": "bb.optim.SGD(bb.optim.schedules.OneCycle(0.1, 1000))",
    "ParameterDict": "a dict of parameters as an attribute",
    "ParameterList": "a list of parameters as an attribute",
    "ReduceLROnPlateau": "bb.optim.SGD(rate), with rate = bb.optim.schedules.ReduceOnPlateau(0.1); rate.observe(loss)",
    "PolynomialLR": "bb.optim.SGD(bb.optim.schedules.Polynomial(0.1, 1000))",
    **dict.fromkeys(
        ("RReLU", "RRelu", "rrelu"),
        "bb.where(x < 0, x * bb.random.uniform(x.shape, low=1 / 8, high=1 / 3), x) while model.training, "
        "else bb.nn.functional.leaky_relu(x, 11 / 48)",
    ),
    "RotaryEncoding": "bb.nn.RotaryEmbedding()",
    "Softmax2d": "bb.nn.Softmax(axis=1)",
    "Subset": "x[indices], of an array",
    "Transformer": "bb.nn.TransformerEncoderLayer(d_model, nhead), bb.nn.TransformerDecoderLayer(d_model, nhead)",
    "TransformerDecoder": "a loop over [bb.nn.TransformerDecoderLayer(d_model, nhead) for _ in range(n)]",
    "TransformerEncoder": "bb.nn.Sequential(*(bb.nn.TransformerEncoderLayer(d_model, nhead) for _ in range(n)))",
    "UpsamplingNearest2d": "bb.nn.Upsample(scale_factor=2)",
    "UpsamplingBilinear2d": "bb.nn.Upsample(scale_factor=2, mode='linear', align_corners=True)",
    "WeightedRandomSampler": "bb.random.choice(x.size, shape, p=x), of weights that sum to 1",
    "absolute": "bb.abs(x)",
    "amax": "x.max(axis)",
    "amin": "x.min(axis)",
    "arccos": "bb.acos(x)",
    "arcsin": "bb.asin(x)",
    "arctan": "bb.atan(x)",
    "arctan2": "bb.atan2(y, x)",
    "argwhere": "bb.stack(bb.nonzero(x), axis=1)",
    "around": "bb.round(x, decimals)",
    "backends": "bb.list_backends()",
    "autograd": "bb.grad(f), or x.grad(loss.backward())",
    "blackman": "bb.fourier.blackman_window(n, periodic=False)",
    "broadcast_tensors": "bb.broadcast_arrays(x, y)",
    "cbrt": "bb.copysign(bb.abs(x) ** (1 / 3), x)",
    "clamp": "x.clip(low, high)",
    "column_stack": "bb.stack([x, y], axis=1) of vectors, bb.concat([x, y], axis=1) of matrices",
    "compile": "bb.capture(step)",
    "cuda": "bb.list_backends(), which shows what can be used here",
    "cumprod": "bb.cumulative_prod(x, axis)",
    "cumsum": "bb.cumulative_sum(x, axis)",
    "custom_gradient": "bb.custom_vjp(f)",
    "custom_jvp": "bb.custom_vjp(f), which forward mode uses too",
    "device": "a backend is a device: bb.load_backend(spec)",
    "distributions": "bb.random draws; of bb.nn.functional, -cross_entropy(logits, x, reduction='none') and "
    "-gaussian_nll_loss(mean, x, variance, full=True, reduction='none') are log-probabilities",
    "double": "bb.float64",
    "dstack": "bb.stack([x, y], axis=2)",
    "eq": "x == y",
    "expand": "x.broadcast_to(shape)",
    "fft2": "bb.fft.fftn(x, axes=(-2, -1))",
    "fix": "bb.trunc(x)",
    "fliplr": "bb.flip(x, axis=1)",
    "flipud": "bb.flip(x, axis=0)",
    "float": "bb.float32",
    "func": "bb.grad, bb.vmap, bb.jvp and the others of backburn's transforms",
    "functional_call": "a model is a tree: bb.grad(lambda model: loss(model))(model)",
    "ge": "x >= y",
    "get_default_device": "bb.default_backend()",
    "get_default_dtype": "bb.default_dtype()",
    "get_rng_state": "bb.random.get_state()",
    "get_total_norm": "bb.optim.global_norm(gradients)",
    "grad_and_value": "bb.value_and_grad(f)",
    "gt": "x > y",
    "half": "bb.float16",
    "hamming": "bb.fourier.hamming_window(n, periodic=False)",
    "hanning": "bb.fourier.hann_window(n, periodic=False)",
    "index_select": "x.take(indices, axis)",
    "ifft2": "bb.fft.ifftn(x, axes=(-2, -1))",
    "inference_mode": "bb.no_grad()",
    "inner": "bb.tensordot(x, y, axes=([-1], [-1])), of vectors x @ y",
    "int": "bb.int32",
    "inverse": "bb.linalg.inv(x)",
    "irfft2": "bb.fft.irfftn(x, axes=(-2, -1))",
    "is_floating_point": "x.dtype.kind == 'float'",
    "is_tensor": "isinstance(x, bb.Tensor)",
    "jacfwd": "bb.jacobian(f, mode='forward')",
    "jacrev": "bb.jacobian(f)",
    "jit": "bb.capture(f, state=False), on the backend 'capture(numpy)' or 'cupy'",
    "kl_div": "bb.nn.functional.kl_div_loss(x, targets)",
    "le": "x <= y",
    "load": "bb.io.load_model(path), or bb.io.load_weights(model, path) for files of other libraries",
    "logspace": "base ** bb.linspace(start, stop, num)",
    "long": "bb.int64",
    "lr_scheduler": "lr may be a function of the number of steps: bb.optim.SGD(bb.optim.schedules.Cosine(0.1, 1000))",
    "lt": "x < y",
    "lu_factor": "bb.linalg.lu(x)",
    "manual_seed": "bb.random.seed(n)",
    "matvec": "bb.vecdot(x, y[..., None, :])",
    "mod": "bb.remainder(x, y)",
    "movedim": "x.moveaxis(source, destination)",
    "mul": "x * y",
    "multinomial": "bb.random.choice(x.size, shape, p=x, replace=False), or bb.random.categorical(logits)",
    "ndarray": "bb.Tensor",
    "ne": "x != y",
    "neg": "-x",
    "norm": "bb.linalg.vector_norm(x) or bb.linalg.matrix_norm(x)",
    "numel": "x.size",
    "parameters_to_vector": "bb.trees.ravel(model)",
    "parametrizations": "bb.nn.WeightNorm(layer), bb.nn.SpectralNorm(layer)",
    "percentile": "bb.quantile(x, percent / 100)",
    "permute": "x.permute_dims(axes)",
    "pinverse": "bb.linalg.pinv(x)",
    "power": "x**y",
    "profiler": "bb.load_backend('trace(numpy)').save(path), after a run on 'autodiff(trace(numpy))'",
    "quiet_softmax": "bb.exp(x - bb.logaddexp(bb.logsumexp(x, axis=-1, keepdims=True), 0.0))",
    "rand": "bb.random.uniform(shape)",
    "rand_like": "bb.random.uniform(x.shape)",
    "randint": "bb.random.integers(shape, low, high)",
    "randn": "bb.random.normal(shape)",
    "randn_like": "bb.random.normal(x.shape)",
    "randperm": "bb.random.permutation(n)",
    "random_split": "bb.data.hold_out(x, y)",
    "range": "bb.arange(low, high)",
    "ravel": "x.flatten()",
    "remat": "bb.checkpoint(f)",
    "repeat_interleave": "bb.repeat(x, n)",
    "rfft2": "bb.fft.rfftn(x, axes=(-2, -1))",
    "save": "bb.io.save_model(path, model.state_dict()), or bb.io.save_state(path, tree) for a whole run",
    "savez": "bb.io.save_npz(path, arrays)",
    "scalar_tensor": "bb.asarray(value)",
    "scatter_add": "bb.scatter(x, indices, y, axis=axis, mode='add')",
    "set_default_dtype": "with bb.use_dtype('float64')",
    "set_rng_state": "bb.random.set_state(state)",
    "sgn": "bb.sign(x)",
    "special": "the functions of bb itself, such as bb.erf(x) and bb.lgamma(x)",
    "solve_triangular": "bb.linalg.triangular_solve(x, y, upper=True)",
    "std_mean": "bb.std(x), bb.mean(x)",
    "sub": "x - y",
    "thresholded_relu": "bb.nn.functional.threshold(x, alpha, 0.0)",
    "tree": "bb.trees",
    "tree_map": "bb.trees.tree_map(f, tree)",
    "tri": "bb.tril(bb.ones((n, m)))",
    "unbind": "x.unstack(axis)",
    "unique": "bb.unique_values(x)",
    "unsqueeze": "x.expand_dims(axis)",
    "utils": "bb.optim.clip_grad_norm(gradients, 1.0), bb.data.batches(x, y, batch_size=32)",
    "var_mean": "bb.var(x), bb.mean(x)",
    "vdot": "bb.vecdot(x, y)",
    "vector_to_parameters": "unravel(vector), with vector, unravel = bb.trees.ravel(model)",
    "vectorize": "bb.vmap(f)",
    "weight_norm": "bb.nn.WeightNorm(layer)",
}

#: JAX's names of functions of trees.
TREES = {
    **dict.fromkeys(("flatten_with_path", "leaves_with_path"), "bb.trees.leaves_with_paths(tree)"),
    **dict.fromkeys(("leaves", "tree_leaves"), "bb.trees.flatten(tree)[0]"),
    **dict.fromkeys(("reduce", "tree_reduce"), "functools.reduce(f, bb.trees.flatten(tree)[0])"),
    **dict.fromkeys(
        ("register_pytree_node", "register_pytree_node_class"), "bb.trees.register_node(cls, flatten, unflatten)"
    ),
    **dict.fromkeys(("structure", "tree_structure"), "bb.trees.flatten(tree)[1]"),
    "all": "all(bb.trees.flatten(tree)[0])",
    "map": "bb.trees.tree_map(f, tree)",
    "tree_flatten": "bb.trees.flatten(tree)",
    "tree_unflatten": "bb.trees.unflatten(structure, leaves)",
}

#: Names of ``nn.functional``, some of which are at the top level here.
FUNCTIONAL = {
    **{name: hint for (_, name), hint in _LAYERS.items()},
    **{f"dropout{rank}d": f"bb.nn.Dropout{rank}d(p)(x)" for rank in (1, 2, 3)},
    **LAYERS,
    **_of_ranks(
        {
            "adaptive_avg_pool": "bb.nn.functional.adaptive_avg_pool(x, size)",
            "adaptive_max_pool": "bb.nn.functional.adaptive_max_pool(x, size)",
            "avg_pool": "bb.nn.functional.avg_pool(x, size)",
            "conv": "bb.nn.functional.conv(x, weight, bias)",
            "conv_transpose": "bb.nn.functional.conv_transpose(x, weight, bias)",
            "max_pool": "bb.nn.functional.max_pool(x, size)",
            "max_unpool": "bb.nn.functional.max_unpool(x, indices, size)",
        }
    ),
    "bce": "bb.nn.functional.binary_cross_entropy(x, targets)",
    "mse": "bb.nn.functional.mse_loss(x, targets)",
    "one_hot": "bb.one_hot(x, classes)",
    "pad": "bb.pad(x, widths)",
    "upsample": "bb.nn.functional.interpolate(x, size)",
}

#: Attributes of tensors that are set in other libraries.
SET = {
    "data": "x.detach() for the values, model.weight = bb.nn.parameter(y) for others",
    "requires_grad": "x.is_require_grad, or x.is_tracked; x.require_grad(), x.detach(), model.freeze() set it",
}
