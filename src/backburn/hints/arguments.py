"""Errors for wrong arguments, with hints about the right ones.

Python's error for ``x.sum(dim=0)`` does not say that the option is called ``axis`` here; :func:`wrong_arguments` does,
for functions and classes alike. :func:`explained` uses it when a call has failed. Where the extra frame would cost too
much, a function's parameters end with ``*surplus: Never`` and ``**wrong: Never``, which it passes to :func:`refuse`:
type checkers reject such arguments, and a call costs two empty containers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from reprlib import repr as shortened
from typing import Any, NoReturn, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

#: Parameters of other libraries or functions, with their names here: hints name the first that the function has.
RENAMED: dict[str, tuple[str, ...]] = {
    "a": ("x",),
    "activation": ("nonlinearity",),
    "at": ("milestones",),
    "attn_bias": ("mask",),
    "axes": ("axis",),
    "beta_1": ("betas",),
    "beta_2": ("betas",),
    "bound": ("b",),
    "causal": ("is_causal",),
    "channels": ("num_features", "num_channels", "num_parameters"),
    "classes": ("num_classes",),
    "constant_values": ("value",),
    "count": ("num_embeddings",),
    "d_ff": ("dim_feedforward",),
    "d_hidden": ("hidden_size",),
    "d_input": ("in_features", "input_size"),
    "d_model": ("embed_dim",),
    "d_output": ("out_features", "hidden_size"),
    "ddof": ("correction",),
    "decay": ("alpha",),
    "decay_rate": ("gamma",),
    "decay_steps": ("T_max", "total_iters", "step_size"),
    "dim": ("axis",),
    "dims": ("axis",),
    "dropout": ("dropout_p",),
    "dropout_p": ("dropout",),
    "end": ("eta_min", "end_value", "min_lr", "end_axis"),
    "end_dim": ("end_axis",),
    "end_value": ("eta_min",),
    "eps": ("layer_norm_eps",),
    "epsilon": ("eps", "layer_norm_eps"),
    "every": ("step_size",),
    "factor": ("gamma",),
    "fall": ("final_div_factor",),
    "features": ("out_channels", "out_features"),
    "first": ("in1_features",),
    "gradient": ("cotangent",),
    "groups": ("num_groups",),
    "growth": ("T_mult",),
    "heads": ("num_heads", "nhead"),
    "hidden": ("dim_feedforward",),
    "high": ("max_val",),
    "history": ("history_size",),
    "ids": ("x",),
    "in_dims": ("in_axes",),
    "init_value": ("lr",),
    "initial": ("initial_accumulator_value",),
    "input": ("x",),
    "input1": ("x1",),
    "input2": ("x2",),
    "inputs": ("in_channels", "in_features", "input_size"),
    "interpolation": ("method",),
    "keepdim": ("keepdims",),
    "kv_heads": ("num_kv_heads",),
    "labels": ("target",),
    "layers": ("num_layers",),
    "learning_rate": ("lr",),
    "loc": ("mean",),
    "low": ("min_val",),
    "maps": ("theta",),
    "max_value": ("clip_value",),
    "mean": ("running_mean",),
    "n_embedding": ("num_embeddings",),
    "n_heads": ("num_heads", "nhead"),
    "nhead": ("num_heads",),
    "num_heads": ("nhead",),
    "ord": ("p", "norm_type"),
    "out_dims": ("out_axes",),
    "outputs": ("out_channels", "out_features"),
    "padding": ("padding_mode",),
    "places": ("output_size",),
    "pre_norm": ("norm_first",),
    "prob": ("p",),
    "rate": ("lr", "max_lr", "p"),
    "rcond": ("rtol",),
    "rise": ("div_factor",),
    "scale": ("scale_factor", "weight", "std"),
    "second": ("in2_features",),
    "shape": ("normalized_shape", "unflattened_size", "size"),
    "share": ("pct_start",),
    "shifts": ("shift",),
    "size": ("kernel_size", "output_size", "hidden_size", "embedding_dim", "embed_dim", "d_model", "shape"),
    "slope": ("negative_slope", "init", "weight"),
    "start": ("start_axis", "init_value"),
    "start_dim": ("start_axis",),
    "steps": ("T_max", "T_0", "total_iters", "total_steps", "warmup_steps"),
    "targets": ("target",),
    "tensors": ("arrays",),
    "threshold": ("lambd",),
    "total_steps": ("total_iters", "T_max"),
    "transition_steps": ("total_iters", "T_max"),
    "use_bias": ("bias",),
    "value": ("padding_value", "val"),
    "variance": ("var", "running_var"),
    "weight": ("elementwise_affine",),
    "y": ("x2",),
}

#: Parameters of other libraries without a counterpart, and the replacement; the error names the first one in a call.
OTHERWISE = {
    "alpha": "multiply the values by it first",
    "attn_mask": "mask, True where to attend",
    "reduce": "mode='add', 'mul', 'min', 'max' or 'mean'",
    "out": "results are new tensors; for np.{name}(x) of a tensor write bb.{name}(x)",
    "create_graph": "bb.grad(bb.grad(f)) is the second derivative of a function",
    "compute_uv": "bb.linalg.svdvals(x) are the singular values alone",
    "dtype": "x.astype(dtype)",
    "key": "generator=bb.random.Generator(seed)",
    "order": "there is one order, NumPy's 'C'",
    "shuffle": "seed=0, epoch=epoch is another order for each epoch",
    "requires_grad": "{name}(...).require_grad()",
    "unbiased": "correction=1 divides by n - 1, correction=0 by n",
}

#: Parameters of layers, optimizers and schedules without a counterpart, and the replacement.
OF_CLASSES = {
    "b1": "betas=(0.9, 0.999)",
    "b2": "betas=(0.9, 0.999)",
    "add_bias_kv": "nothing: append the rows to keys and values after k_proj and v_proj, and call "
    "functional.scaled_dot_product_attention",
    "add_zero_attn": "nothing: append a row of zeros to keys and values after k_proj and v_proj, and call "
    "functional.scaled_dot_product_attention",
    "key_padding_mask": "mask=~padding[:, None, None, :], True where to attend",
    "attn_mask": "mask=~attn_mask, True where to attend",
    "need_weights": "nothing, the result is the tensor alone",
    "average_attn_weights": "nothing, the result is the tensor alone",
    "batch_first": "nothing, the batch axis is first",
    "device": "with bb.use_backend(backend): around it, or model.to(backend)",
    "dtype": "with bb.use_dtype('float64'): around it, or model.astype('float64')",
    "foreach": "nothing, all parameters are updated together",
    "fused": "nothing, all parameters are updated together",
    "inplace": "nothing, tensors are never changed",
    "line_search_fn": "optimizer.step(model, loss) searches, where loss is a function of the model",
    "max_iter": "optimizer.step(model, loss, steps=20)",
    "maximize": "negate the loss",
    "steps": "optimizer.step(model, loss, steps=20)",
}

#: Parameters that take several numbers as one argument.
TOGETHER = {
    "shape": "a shape is one argument: {name}((2, 3))",
    "axes": "several axes are one argument: {name}((1, 0)); swapaxes swaps two",
    "repeats": "the whole tensor several times along each axis is bb.tile(x, (2, 1, 1))",
    "f": "the function is the only argument: {name}(f)(x)",
}

#: Calls without their arguments, and what to write.
WITHOUT_ARGUMENTS = {
    "step": "optimizer.step(model, gradients), with gradients = loss.backward()",
}

_PLACED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def explained(function: F, name: str = "", otherwise: Mapping[str, str] = OTHERWISE) -> F:
    """``function``, which raises the errors of :func:`wrong_arguments`, under ``name`` or its own name."""

    @wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        try:
            return function(*given, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within
            fault = str(error).partition("() ")[2]
        if not given[1:] and not options and function.__name__ in WITHOUT_ARGUMENTS:
            fault += f"; here: {WITHOUT_ARGUMENTS[function.__name__]}"
        takes = signature(function)
        kinds = [p.kind for p in takes.parameters.values()]
        placed = len(given) if Parameter.VAR_POSITIONAL in kinds else sum(kind in _PLACED for kind in kinds)
        wrong = {word: value for word, value in options.items() if word not in takes.parameters}
        raise wrong_arguments(name or function.__name__, takes, given[placed:], wrong, otherwise, fault) from None

    return cast(F, call)


def plain_signature(function: F) -> F:
    """``function``, with a displayed signature without the catch-all parameters ``*surplus`` and ``**wrong``."""
    found = signature(function)
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    kept = [p for p in found.parameters.values() if p.kind not in variable]
    vars(function)["__signature__"] = found.replace(parameters=kept)
    return function


def refuse(function: Callable[..., Any], surplus: tuple[Any, ...], wrong: dict[str, Any]) -> NoReturn:
    """Raise the error for arguments that ``function`` does not take, by position or by name."""
    raise wrong_arguments(function.__name__, signature(function), surplus, wrong)


def wrong_arguments(
    name: str,
    takes: Signature,
    surplus: tuple[Any, ...],
    wrong: Mapping[str, Any],
    otherwise: Mapping[str, str] = OTHERWISE,
    fault: str = "",
) -> TypeError:
    """The error for arguments that a function does not take: what it takes, and what was probably meant.

    ``fault`` is Python's message, for other faults, such as a missing argument.
    """
    hint = ""
    placed = [n for n, p in takes.parameters.items() if p.kind in _PLACED and n != "self"]
    if wrong:
        word = next((word for word in otherwise if word in wrong), next(iter(wrong)))
        fault = f"got an unexpected keyword argument {word!r}"
        ours = next((known for known in RENAMED.get(word, ()) if known in takes.parameters), None)
        hint = ours or otherwise.get(word, "").format(name=name)
        hint = f"; here: {hint}" if hint else ""
    elif surplus:
        many = f"{len(placed)} positional argument{'s' * (len(placed) > 1)} at most" if placed else "no arguments"
        fault = f"takes {many}, and not {shortened(surplus[0])} besides"
        hint = next((f"; {TOGETHER[word].format(name=name)}" for word in placed if word in TOGETHER), "")
    return TypeError(f"{name}() {fault}{hint}; it takes {name}{plain(takes)}")


def plain(found: Signature) -> str:
    """A signature without annotations: names and defaults."""
    kept = [p.replace(annotation=Parameter.empty) for p in found.parameters.values() if p.name != "self"]
    return str(found.replace(parameters=kept, return_annotation=Signature.empty))
