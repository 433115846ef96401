"""Errors for unexpected arguments, with hints about the expected ones.

Python's error for ``x.sum(dim=0)`` does not say that the option is called ``axis`` here. A function that users of other
libraries often call like this has the last parameters ``*surplus: Never`` and ``**wrong: Never``, which type checkers
reject, and passes both to :func:`refuse`. That costs two empty containers per call, one or two hundredths of the
smallest operation; a wrapper would cost a call. Other functions raise Python's own errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from reprlib import repr as shortened
from typing import Any, NoReturn, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

#: What others call parameters, and what they are called here, in functions that have them.
RENAMED = {
    "T_max": "steps",
    "a": "x",
    "attn_bias": "mask",
    "attn_mask": "mask",
    "axes": "axis",
    "beta_1": "betas",
    "beta_2": "betas",
    "constant_values": "value",
    "d_ff": "hidden",
    "d_hidden": "size",
    "d_input": "inputs",
    "d_model": "size",
    "d_output": "outputs",
    "ddof": "correction",
    "decay": "alpha",
    "decay_rate": "factor",
    "decay_steps": "steps",
    "dim": "axis",
    "dim_feedforward": "hidden",
    "dims": "axis",
    "dropout_p": "dropout",
    "embed_dim": "size",
    "embedding_dim": "size",
    "end_dim": "end",
    "end_value": "end",
    "epsilon": "eps",
    "eta_min": "end",
    "gamma": "factor",
    "gradient": "cotangent",
    "hidden_size": "size",
    "history_size": "history",
    "in1_features": "first",
    "in2_features": "second",
    "in_channels": "inputs",
    "in_dims": "in_axes",
    "in_features": "inputs",
    "init_value": "rate",
    "initial_accumulator_value": "initial",
    "input": "x",
    "input_size": "inputs",
    "interpolation": "method",
    "is_causal": "causal",
    "keepdim": "keepdims",
    "kernel_size": "size",
    "lambd": "threshold",
    "layer_norm_eps": "eps",
    "learning_rate": "lr",
    "loc": "mean",
    "max_lr": "rate",
    "max_val": "high",
    "milestones": "at",
    "min_lr": "end",
    "min_val": "low",
    "n_embedding": "count",
    "n_heads": "heads",
    "negative_slope": "slope",
    "nhead": "heads",
    "nonlinearity": "activation",
    "norm_first": "pre_norm",
    "normalized_shape": "shape",
    "num_channels": "channels",
    "num_embeddings": "count",
    "num_features": "channels",
    "num_groups": "groups",
    "num_heads": "heads",
    "num_layers": "layers",
    "num_parameters": "channels",
    "out_channels": "outputs",
    "out_dims": "out_axes",
    "out_features": "outputs",
    "output_size": "size",
    "prob": "p",
    "rate": "p",
    "rcond": "rtol",
    "scale": "std",
    "scale_factor": "scale",
    "shifts": "shift",
    "size": "shape",
    "start_dim": "start",
    "step_size": "every",
    "tensors": "arrays",
    "total_steps": "steps",
    "transition_steps": "steps",
    "unflattened_size": "shape",
    "use_bias": "bias",
}

#: Options of others that are none here, and what does the same; the first of them in a call is told.
OTHERWISE = {
    "alpha": "multiply the values by it before",
    "reduce": "mode='add', 'mul', 'min', 'max' or 'mean'",
    "out": "results are new tensors; for np.{name}(x) of a tensor write bb.{name}(x)",
    "create_graph": "tensors on another level, 'autodiff(autodiff(numpy))', or bb.grad(bb.grad(f))",
    "compute_uv": "bb.linalg.svdvals(x) are the singular values alone",
    "dtype": "x.astype(dtype)",
    "key": "generator=bb.random.Generator(seed)",
    "order": "there is one order, NumPy's 'C'",
    "shuffle": "seed=0, epoch=epoch is an order of its own for each epoch",
    "requires_grad": "{name}(...).require_grad()",
    "unbiased": "correction=1 divides by n - 1, correction=0 by n",
}

#: Options of the layers of others that are none here, and what does the same.
OF_LAYERS = {
    "b1": "betas=(0.9, 0.999)",
    "b2": "betas=(0.9, 0.999)",
    "batch_first": "nothing, the batch axis is first",
    "device": "with bb.use_backend(backend): around it, or model.to(backend)",
    "dtype": "with bb.use_dtype('float64'): around it, or model.astype('float64')",
    "elementwise_affine": "weight=False, and bias=False where there is one",
    "foreach": "nothing, parameters are stepped together",
    "fused": "nothing, parameters are stepped together",
    "inplace": "nothing, tensors are never changed",
    "line_search_fn": "optimizer.step(model, loss) searches, where loss is a function of the model",
    "lr_decay": "a rate of the number of steps, lambda n: 0.01 / (1 + 0.1 * n)",
    "max_iter": "optimizer.step(model, loss, steps=20)",
    "maximize": "negate the loss",
    "padding_mode": "bb.nn.Pad(1, mode='wrap') before it; 'edge' and 'reflect' are modes, too",
    "return_indices": "bb.nn.functional.max_pool_with_indices(x, size)",
    "steps": "optimizer.step(model, loss, steps=20)",
}

#: Parameters that take several numbers as one argument.
TOGETHER = {
    "shape": "a shape is one argument: {name}((2, 3))",
    "axes": "several axes are one argument: {name}((1, 0)); swapaxes swaps two",
    "repeats": "the whole tensor several times along each axis is bb.tile(x, (2, 1, 1))",
    "f": "the function comes alone: {name}(f)(x)",
}


def plain_signature(function: F) -> F:
    """``function``, with a displayed signature without the catch-all parameters ``*surplus`` and ``**wrong``."""
    found = signature(function)
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    kept = [p for p in found.parameters.values() if p.kind not in variable]
    vars(function)["__signature__"] = found.replace(parameters=kept)
    return function


def checked(function: F) -> F:
    """``function``, wrapped to raise the error of :func:`refuse` for unknown names; for rarely called functions.

    Python would first report a missing argument.
    """
    takes = signature(function).parameters

    @wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        if wrong := {name: value for name, value in options.items() if name not in takes}:
            refuse(function, (), wrong)
        return function(*given, **options)

    return cast(F, call)


def refuse(function: Callable[..., Any], surplus: tuple[Any, ...], wrong: dict[str, Any]) -> NoReturn:
    """Raise the TypeError for arguments that ``function`` does not take, by position or by name."""
    name, takes = function.__name__, signature(function)
    hint = ""
    if surplus:
        placed = [n for n, p in takes.parameters.items() if p.kind is not Parameter.KEYWORD_ONLY and n != "self"]
        most = len(placed)
        fault = f"takes {most} positional argument{'s' * (most > 1)} at most, and not {shortened(surplus[0])} besides"
        hint = next((f"; {TOGETHER[word].format(name=name)}" for word in placed if word in TOGETHER), "")
    else:
        word = next((word for word in OTHERWISE if word in wrong), next(iter(wrong)))
        fault = f"got an unexpected keyword argument {word!r}"
        hint = renamed(word, takes)
        if not hint and word in OTHERWISE:
            hint = f"; here: {OTHERWISE[word].format(name=name)}"
    raise TypeError(f"{name}() {fault}{hint}; it takes {name}{plain(takes)}")


def renamed(word: str, takes: Signature) -> str:
    """A hint at the name that an argument of other libraries has in a signature; empty if it has none."""
    ours = RENAMED.get(word)
    return f"; here: {ours}" if ours in takes.parameters else ""


def plain(found: Signature) -> str:
    """A signature without annotations: names and defaults."""
    kept = [p.replace(annotation=Parameter.empty) for p in found.parameters.values() if p.name != "self"]
    return str(found.replace(parameters=kept, return_annotation=Signature.empty))
