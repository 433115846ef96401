"""``backburn run`` and ``backburn info FILE``: run ONNX models on any backend, and describe them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from backburn.backend import OPERATIONS
from backburn.base.errors import ArgumentError
from backburn.base.foreign import listed, printable


def add_run(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn run``."""
    command = commands.add_parser(
        "run",
        parents=[common],
        help="compute the outputs of an ONNX model",
        description="Compute the outputs of an ONNX model for the arrays of a file.",
    )
    command.add_argument("file", metavar="FILE", type=Path, help="an ONNX model")
    command.add_argument(
        "--input", metavar="INPUTS", type=Path, required=True, help="an npz file with the inputs by name"
    )
    command.add_argument(
        "--output", metavar="PATH", type=Path, help="an npz file for the outputs; else they are printed"
    )
    command.add_argument("--backend", metavar="SPEC", help="the backend that computes, such as numpy")
    command.set_defaults(run=run_model)


def run_model(options: argparse.Namespace) -> int:
    """Compute the outputs, and save or print them."""
    from backburn import io, onnx

    _check_kind("run", options.file)
    model = onnx.load(options.file, backend=options.backend)
    inputs = io.load_npz(options.input)
    if len(inputs) == len(model.input_names) == 1:  # whatever it is called
        outputs = model(*inputs.values())
    else:
        unknown = [name for name in inputs if name not in model.input_names]
        if unknown:
            raise ArgumentError(
                f"run: {options.input} has the arrays {listed(unknown)}, and the model takes "
                f"{listed(model.input_names)}"
            )
        outputs = model(**inputs)
    found = dict(zip(model.output_names, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
    sequences = [name for name, value in found.items() if isinstance(value, list)]
    if sequences:
        raise ArgumentError(f"run: the outputs {listed(sequences)} are sequences, which an npz file does not hold")
    if options.output is not None:
        io.save_npz(options.output, found)
    for name, value in found.items():
        print(f"{printable(name)}: {value.dtype}{list(value.shape)}")
        if options.output is None:
            print(value)
    return 0


def is_model(name: str) -> bool:
    """Whether the argument of ``backburn info`` is a file; the name of an operation never is."""
    return name.endswith(".onnx") or (name not in OPERATIONS and Path(name).is_file())


def _check_kind(command: str, path: Path) -> None:
    """Raise :class:`ArgumentError` for files of weights, which are not ONNX models."""
    if path.suffix in {".safetensors", ".pt", ".pth", ".gguf", ".npz"}:
        raise ArgumentError(
            f"{command}: {path} holds weights, and {command} takes models of ONNX. What 'backburn train' has saved is "
            "for 'backburn evaluate' and 'backburn predict'; bb.io.load_weights(model, path) reads the others"
        )


def describe_model(path: str) -> str:
    """The inputs, outputs, tensors and operators of a model."""
    from backburn import onnx

    _check_kind("info", Path(path))
    model = onnx.load(path, backend="null")
    lines = [f"input   {printable(spec.name)}: {spec}" for spec in model.input_specs]
    lines += [f"output  {printable(name)}" for name in model.output_names]
    lines += [f"{model.num_parameters} parameters", "", str(model.report)]
    return "\n".join(lines)
