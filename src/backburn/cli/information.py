"""``backburn backends`` and ``backburn info``: installed and usable backends, versions, and one operation."""

from __future__ import annotations

import argparse
import inspect
import linecache
import os
import platform
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_overloads

from backburn.autodiff import forward_codegen, reverse_codegen
from backburn.backend import CONTRACT_VERSION, OPERATIONS, BackendInfo, Operation, list_backends, load_backend
from backburn.backend.registry import list_decorators
from backburn.base.errors import ArgumentError, BackburnError, hint_for
from backburn.batching.rules import rule_of
from backburn.ops.table import KINDS, families
from backburn.tensor.core.defaults import default_backend

#: Packages whose versions matter in a report.
PACKAGES = ("numpy", "typing-extensions", "ml-dtypes", "pydantic", "tqdm", "matplotlib", "safetensors")


def add_backends(commands: Any, common: argparse.ArgumentParser) -> None:
    """Enter ``backburn backends``."""
    command = commands.add_parser(
        "backends", parents=[common], help="list installed backends", description="List the installed backends."
    )
    command.set_defaults(run=show_backends)


def add_info(commands: Any, common: argparse.ArgumentParser) -> None:
    """Enter ``backburn info``."""
    command = commands.add_parser(
        "info",
        parents=[common],
        help="versions and a check of each backend, or one operation",
        description="Show versions and check each backend with one small operation; or describe an operation.",
    )
    command.add_argument("operation", nargs="?", metavar="OPERATION", help="an operation of the contract, such as add")
    command.add_argument("--required", action="store_true", help="list what a backend has to implement")
    command.add_argument("--source", action="store_true", help="print its code on Autodiff and Forward")
    command.set_defaults(run=show_info)


def show_backends(options: argparse.Namespace) -> int:
    """Print each installed backend and decorator: usable or not and why, its device, package and version."""
    backends, decorators = _installed()
    known = [(b.name, "yes" if b.usable else "no", _device(b), _package(b), b.target) for b in backends]
    _print_table([("backend", "usable", "device", "package", "from"), *known])
    for backend in backends:
        if not backend.usable:
            print(f"\n{backend.name} cannot be used: {backend.reason}")
    print()
    wrapping = [(d.name, "yes" if d.usable else "no", _package(d), d.target) for d in decorators]
    _print_table([("decorator", "usable", "package", "from"), *wrapping])
    for decorator in decorators:
        if not decorator.usable:
            print(f"\n{decorator.name} cannot be used: {decorator.reason}")
    print(f"\ndefault: {_default()}")
    return 0


def show_info(options: argparse.Namespace) -> int:
    """Print versions and a check of each backend, or the answer for ``OPERATION`` or ``--required``."""
    if options.source and not options.operation:
        raise ArgumentError("info: --source prints the code of one operation: write backburn info OPERATION --source")
    if options.operation:
        print((generated_sources if options.source else describe_operation)(options.operation))
        return 0
    if options.required:
        print(describe_required())
        return 0
    from backburn import __version__

    required = sum(entry.required for entry in OPERATIONS.values())
    rows = [
        ("backburn", __version__),
        ("contract", f"{CONTRACT_VERSION}: {len(OPERATIONS)} operations, {required} of them required"),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("platform", platform.platform()),
        ("default", _default()),
        *((package, _version(package)) for package in PACKAGES),
    ]
    _print_table(rows)
    print()
    backends = _installed()[0]
    results = [(b.name, *_check(b)) for b in backends]
    _print_table(results)
    words = [(b.name, name, text) for b in backends if b.usable for name, text in _libraries(b).items()]
    if words:
        print()
        _print_table(words)
    return 1 if any(outcome == "FAIL" for _, outcome, _ in results) else 0


def describe_operation(name: str) -> str:
    """The description of an operation: signature, family, kinds, doc, gradient rules, samples.

    >>> print(describe_operation("neg"))
    neg(...
    ...
    """
    from backburn.conformance import SAMPLES

    entry = _entry(name)
    cases = SAMPLES[name].cases if name in SAMPLES else ()
    lines = [
        *_signatures(entry),
        "",
        *(f"    {line}".rstrip() for line in entry.doc.splitlines()),
        "",
        f"family          {entry.family}",
        f"kinds           {', '.join(KINDS[kind] for kind in entry.kinds)}",
        f"implementation  {'required' if entry.required else 'derived: it has a default body'}",
        f"differentiable  {'yes' if entry.differentiable else 'no'}",
        f"vmap            {_batching(entry)}",
        f"samples         {len(cases)}",
        "",
        *_rule_lines(entry),
    ]
    return "\n".join(lines)


def generated_sources(name: str) -> str:
    """The Python code of an operation on ``Autodiff`` and on ``Forward``, each generated at the first call.

    Names that begin with an underscore belong to the generator: ``_rule_0`` is the first of the operation's gradient
    rules, which ``backburn info OPERATION`` prints, and ``_tangent_0`` the first of its tangent rules.

        >>> print(generated_sources("neg"))
        # Autodiff.neg
        def _backward(k, g, _node):
        ...
    """
    return "\n".join(f"# {decorator}.{name}\n{generated_source(name, decorator)}" for decorator in _GENERATORS).rstrip()


def generated_source(name: str, decorator: str) -> str:
    """The Python code of an operation on one decorator, ``"Autodiff"`` or ``"Forward"``."""
    function = _GENERATORS[decorator](_entry(name))
    return "".join(linecache.getlines(function.__code__.co_filename))


#: Generators of the methods of the differentiating decorators.
_GENERATORS: dict[str, Callable[[Operation], Callable[..., Any]]] = {
    "Autodiff": reverse_codegen.compile_operation,
    "Forward": forward_codegen.compile_operation,
}


def _entry(name: str) -> Operation:
    """The table's entry of an operation; :class:`ArgumentError` for any other name."""
    if name not in OPERATIONS:
        raise ArgumentError(f"info: the contract has no operation {name!r}. {_near(name)}")
    return OPERATIONS[name]


def describe_required() -> str:
    """The signatures of all required operations, by family, and the required properties and methods.

    F, I, B and Q stand for the backend's primitives of the four kinds.
    """
    lines = ["F, I, B and Q are the backend's float, int, bool and quantized primitives.", ""]
    for family, entries in families():
        required = [signature for entry in entries if entry.required for signature in _signatures(entry)]
        if required:
            lines += [f"{family}:", *(f"    {signature}" for signature in required), ""]
    lines += ["properties:", "    spec -> str", "    device -> str", "    capabilities -> Capabilities", ""]
    lines += ["method:", "    dtype(x: F | I | B | Q, /) -> DType"]
    return "\n".join(lines)


def _near(name: str) -> str:
    hint = hint_for(name, OPERATIONS)
    return hint if hint.startswith("Did") else f"It has {len(OPERATIONS)}; backburn info --required lists some"


class _Bare(str):
    """An annotation that prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signatures(entry: Operation) -> list[str]:
    """The signatures of an operation: one for each overload, or the only one."""
    return [f"{entry.name}{_signature(body)}" for body in (get_overloads(entry.body) or [entry.body])]


def _signature(body: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(body)
    parameters = [p.replace(annotation=_Bare(p.annotation)) for n, p in signature.parameters.items() if n != "self"]
    return inspect.Signature(parameters, return_annotation=_Bare(signature.return_annotation))


def _batching(entry: Operation) -> str:
    """The way ``vmap`` computes an operation for all examples, in words."""
    if rule_of(entry) is not None:
        return "by a batching rule"
    if entry.shape is None or entry.results in (("host",), ("data",)):
        return "not where values differ between examples: its result depends on them"
    if "Q" in entry.kinds or getattr(entry.attributes.get("dtype"), "kind", "") == "quantized":
        return "what is quantized is the same for all examples"
    return "the same for all examples" if entry.required else "by its default body, or for one example after another"


def _rule_lines(entry: Operation) -> list[str]:
    """The source of an operation's gradient rules, and where it stands."""
    rules = entry.gradients
    if not rules:
        how = "none: its body is recorded operation by operation" if entry.differentiable else "none"
        return [f"gradient rule   {how}"]
    lines = [f"gradient rules  for {', '.join(operand for rule in rules for operand in rule.operands)}"]
    shown = set()
    for rule in rules:
        code = rule.function.__code__
        source, first = inspect.getsourcelines(code)
        if (code.co_filename, first) not in shown:
            shown.add((code.co_filename, first))
            lines += ["", f"    # {Path(code.co_filename).name}, line {first}"]
            lines += [f"    {line}".rstrip() for line in source]
    return lines


def _installed() -> tuple[list[BackendInfo], list[BackendInfo]]:
    """Backends and decorators; that a package is broken stands in the table, and need not be warned of as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list_backends(), list_decorators()


def _check(info: BackendInfo) -> tuple[str, str]:
    """Whether a backend adds 1 to two numbers, or is absent, and the result or the error."""
    if not info.usable:
        return "absent" if info.absent else "FAIL", info.reason
    try:
        backend = load_backend(info.name)
        answer = backend.add(backend.full((2,), 1.0, dtype=backend.float_dtype), 1.0)
        if "value" not in getattr(backend, "conformance_kinds", ["value"]):
            right = answer.shape == (2,)
            return _outcome(right), f"[1, 1] + 1 has shape {answer.shape}; no values are computed"
        result = backend.to_numpy(answer).tolist()
    except Exception as error:  # the report is about any error of a backend
        return "FAIL", f"{type(error).__name__}: {error}"
    return _outcome(result == [2.0, 2.0]), f"[1, 1] + 1 = {result} on {backend.device}"


def _libraries(info: BackendInfo) -> Mapping[str, str]:
    """The libraries that compute for a backend, by name; none for a backend that does not list them."""
    return getattr(load_backend(info.name), "libraries", {})


def _outcome(right: bool) -> str:
    return "PASS" if right else "FAIL"


def _device(info: BackendInfo) -> str:
    return load_backend(info.name).device if info.usable else "-"


def _package(info: BackendInfo) -> str:
    return info.distribution or "-"


def _default() -> str:
    chosen = os.environ.get("BACKBURN_BACKEND") or None
    where = "" if chosen is None else f" (from BACKBURN_BACKEND={chosen})"
    try:
        return f"{(default_backend() if chosen is None else load_backend(chosen)).spec}{where}"
    except BackburnError as error:
        return f"cannot be used{where}: {error}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as they need to be."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
