"""``backburn backends`` and ``backburn info``: installed and usable backends, versions, and one operation."""

from __future__ import annotations

import argparse
import inspect
import json
import linecache
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_overloads

from backburn.autodiff import forward_codegen, reverse_codegen
from backburn.backend import OPERATIONS, BackendInfo, Operation
from backburn.base.errors import ArgumentError, hint_for
from backburn.batching.rules import rule_of
from backburn.cli import environment, onnx_models
from backburn.cli.training import plan_of
from backburn.ops.table import KINDS, families


def add_backends(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn backends``."""
    command = commands.add_parser(
        "backends", parents=[common], help="list installed backends", description="List the installed backends."
    )
    command.set_defaults(run=show_backends)


def add_info(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn info``."""
    command = commands.add_parser(
        "info",
        parents=[common],
        help="versions and a check of each backend, or one operation or model",
        description="Show versions and check each backend with one small operation; or describe an operation, or an "
        "ONNX model.",
    )
    command.add_argument(
        "operation", nargs="?", metavar="OPERATION|FILE", help="an operation, such as add, a model, or a configuration"
    )
    command.add_argument("--json", action="store_true", help="print the versions and checks as JSON, for a bug report")
    command.add_argument("--required", action="store_true", help="list what a backend has to implement")
    command.add_argument("--source", action="store_true", help="print an operation's code on Autodiff and Forward")
    command.add_argument(
        "--plan",
        action="store_true",
        help="take a few training steps of a configuration, and print their passes over memory",
    )
    command.set_defaults(run=show_info)


def show_backends(options: argparse.Namespace) -> int:
    """Print each installed backend and decorator: usable or not and why, its device, package and version."""
    backends, decorators = environment.installed()
    known = [
        (b.name, "yes" if b.usable else "no", environment.device(b) or "-", _package(b), b.target) for b in backends
    ]
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
    print(f"\ndefault: {_default(environment.default())}")
    return 0


def show_info(options: argparse.Namespace) -> int:
    """Print versions and a check of each backend, or the answer for ``OPERATION`` or ``--required``."""
    if options.source and not options.operation:
        raise ArgumentError("info: --source prints the code of one operation: write backburn info OPERATION --source")
    if options.json and (options.operation or options.required):
        raise ArgumentError("info: --json prints the report on the installation: leave OPERATION and --required out")
    if options.plan:
        print(plan_of(options.operation))
        return 0
    if options.operation and onnx_models.is_model(options.operation):
        if options.source:
            raise ArgumentError("info: --source prints the code of an operation, and not of a model")
        print(onnx_models.describe_model(options.operation))
        return 0
    if options.operation:
        print((generated_sources if options.source else describe_operation)(options.operation))
        return 0
    if options.required:
        print(describe_required())
        return 0
    report = environment.gather()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _print_report(report)
    return 1 if any(backend["check"]["outcome"] == "FAIL" for backend in report["backends"]) else 0


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
    """How ``vmap`` computes an operation for all examples, as text."""
    if rule_of(entry) is not None:
        return "by a batching rule"
    if entry.shape is None or entry.results in (("host",), ("data",)):
        return "not where values differ between examples: its result depends on them"
    if "Q" in entry.kinds or getattr(entry.attributes.get("dtype"), "kind", "") == "quantized":
        return "quantized tensors are the same for all examples"
    return "the same for all examples" if entry.required else "by its default body, or for one example after another"


def _rule_lines(entry: Operation) -> list[str]:
    """The source of an operation's gradient rules, and its location."""
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


def _print_report(report: Mapping[str, Any]) -> None:
    contract, python, machine = report["contract"], report["python"], report["platform"]
    operations = f"{contract['operations']} operations, {contract['required']} of them required"
    kind = " free-threaded" if python["free_threaded"] else ""
    rows = [
        ("backburn", report["backburn"]),
        ("contract", f"{contract['version']}: {operations}"),
        ("python", f"{python['implementation']} {python['version']}{kind} ({python['executable']})"),
        ("platform", machine["name"]),
        ("processor", f"{machine['processors']} of {machine['processor'] or machine['machine']}"),
        ("default", _default(report["default"])),
        *((package, found or "not installed") for package, found in report["packages"].items()),
        *report["variables"].items(),
    ]
    _print_table(rows)
    print()
    _print_table([(b["name"], b["check"]["outcome"], b["check"]["words"]) for b in report["backends"]])
    words = [(b["name"], name, text) for b in report["backends"] for name, text in b["libraries"].items()]
    if words:
        print()
        _print_table(words)


def _package(info: BackendInfo) -> str:
    return info.distribution or "-"


def _default(default: Mapping[str, str | None]) -> str:
    where = f" (from BACKBURN_BACKEND={default['variable']})" if default["variable"] else ""
    return f"{default['spec']}{where}" if default["spec"] else f"cannot be used{where}: {default['error']}"


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as they need to be."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
