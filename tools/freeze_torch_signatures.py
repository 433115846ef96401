"""Write the signatures of PyTorch's layers, functions and optimizers to ``tests/project/torch_signatures.json``.

    python tools/freeze_torch_signatures.py

It needs PyTorch; ``tests/project/test_torch_signatures.py``, which compares our signatures with them, does not. A
parameter is its name, or a pair of name and default; those after ``"*"`` are keyword-only.
"""

from __future__ import annotations

import ast
import inspect
import json
import typing
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional, utils
from torch.optim import lr_scheduler

FILE = Path(__file__).parents[1] / "tests" / "project" / "torch_signatures.json"

#: Functions whose public name is a dispatcher without a signature.
BEHIND = {name: vars(functional)[f"_{name}"] for name in ("max_pool2d", "adaptive_max_pool2d")}


def documented(name: str, text: str) -> inspect.Signature:
    """The signature in the first lines of a docstring, ``linear(input, weight, bias=None) -> Tensor``."""
    begin = text.index(f"{name}(") + len(name)
    depth, end = 0, begin
    for end in range(begin, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if not depth:
            break
    function = ast.parse(f"def f{text[begin : end + 1]}: ...").body[0]
    scope: dict[str, Any] = {"Tensor": Any}
    exec(compile(ast.Module([function], []), name, "exec"), scope)
    return inspect.signature(scope["f"])


def signature(name: str, function: Any) -> inspect.Signature:
    """The signature of a class or function, which may be overloaded or built in."""
    function = BEHIND.get(name, function)
    if isinstance(function, type) and (overloads := typing.get_overloads(vars(function).get("__init__", len))):
        found = inspect.signature(overloads[0])
        return found.replace(parameters=list(found.parameters.values())[1:])
    try:
        found = inspect.signature(function)
    except ValueError:
        return documented(name, function.__doc__)
    if any(p.kind is p.VAR_POSITIONAL for p in found.parameters.values()):
        return documented(name, function.__doc__)
    return found


def frozen(name: str, function: Any) -> list[Any]:
    """The parameters of a function as JSON."""
    parameters: list[Any] = []
    for p in signature(name, function).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            continue
        if p.kind is p.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        default = p.default if p.default is None or isinstance(p.default, (bool, int, float, str, tuple)) else "..."
        parameters.append(p.name if p.default is p.empty else [p.name, default])
    return parameters


def all_of(module: Any, chosen: Any) -> dict[str, list[Any]]:
    """The parameters of all public callables of a module that ``chosen`` accepts."""
    found = {}
    for name in dir(module):
        value = getattr(module, name)
        if not name.startswith("_") and callable(value) and chosen(value):
            try:
                found[name] = frozen(name, value)
            except (ValueError, AttributeError, SyntaxError):  # no signature, not even in the docstring
                continue
    return found


def main() -> None:
    """Write the file."""
    is_layer = lambda x: isinstance(x, type) and issubclass(x, nn.Module)  # noqa: E731
    is_optimizer = lambda x: isinstance(x, type) and issubclass(x, optim.Optimizer)  # noqa: E731
    is_schedule = lambda x: isinstance(x, type) and issubclass(x, lr_scheduler.LRScheduler)  # noqa: E731
    names = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "rnn.pad_sequence")
    tools = {n.rpartition(".")[2]: getattr(utils.rnn if "rnn" in n else utils, n.rpartition(".")[2]) for n in names}
    signatures = {
        "nn": all_of(nn, is_layer),
        "functional": all_of(functional, lambda x: not isinstance(x, type))
        | {n: frozen(n, getattr(torch, n)) for n in ("tanh", "sigmoid", "flatten")},
        "init": all_of(nn.init, lambda x: not isinstance(x, type)),
        "optim": all_of(optim, is_optimizer),
        "schedules": all_of(lr_scheduler, is_schedule),
        "utils": {n: frozen(n, tool) for n, tool in tools.items()},
    }
    lines = [json.dumps(torch.__version__.partition("+")[0])]
    for group, functions in signatures.items():
        rows = ",\n".join(f"  {json.dumps(n)}: {json.dumps(p)}" for n, p in sorted(functions.items()))
        lines.append(f"{json.dumps(group)}: {{\n{rows}\n}}")
    FILE.write_text('{"version": ' + ",\n".join(lines) + "}\n")
    print(f"{FILE}: {sum(map(len, signatures.values()))} signatures, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
