"""Modules exported by PyTorch: files, and the values that PyTorch computes (``tools/freeze_onnx.py``)."""

from pathlib import Path

import numpy as np

import backburn as bb

FOLDER = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in FOLDER.glob("*.onnx"))


def numbers(name):
    """The arrays of a module."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


def load(name, **options):
    """The model of a module."""
    return bb.onnx.load(FOLDER / f"{name}.onnx", **options)


def inputs_of(name, arrays, backend=None):
    """The inputs of a module as tensors."""
    found = [bb.asarray(arrays[key], backend=backend) for key in sorted(arrays) if key.startswith("input:")]
    return [bb.astype(x, "bfloat16") for x in found] if name == "bfloat16" else found


def loss_of(output, arrays):
    """The weighted sum of the outputs."""
    probe = bb.asarray(arrays["probe"].astype(np.float32), backend=output.backend)
    return (bb.astype(output, "float32") * probe).sum()


def far(found, expected):
    """The largest difference, relative to the largest expected value."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    return np.abs(found - expected).max(initial=0.0) / max(np.abs(expected).max(initial=0.0), 1e-30)
