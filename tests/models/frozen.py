"""The models frozen by `tools/freeze_models.py`: configurations, weights, inputs, results and gradients."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import backburn as bb
from backburn.models.pretrained import ARCHITECTURES

FILE = Path(__file__).parent / "frozen.npz"
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Frozen:
    """A case; weights and gradients have the names of the published file."""

    config: dict[str, Any]
    weights: Arrays
    grads: Arrays
    inputs: Arrays
    result: NDArray[Any]

    def model(self, backend: str | None = None, **changes: Any) -> Any:
        """The model with the frozen weights, in evaluation mode."""
        name = self.config["architectures"][0] if "architectures" in self.config else self.config["_class_name"]
        kind, config = ARCHITECTURES[name]
        with bb.use_backend(backend or bb.default_backend()):
            made: Any = kind(config.from_dict(self.config | changes))
        bb.io.load_weights(made, self.weights)
        return made.eval()

    def given(self, backend: str | None = None, dtype: str = "float32") -> list[Any]:
        """The inputs as tensors."""
        tensors = [bb.asarray(x, backend=backend) for x in self.inputs.values()]
        return [x.astype(dtype) if x.dtype.kind == "float" else x for x in tensors]


@cache
def _file() -> Any:
    return np.load(FILE)


@cache
def frozen(name: str) -> Frozen:
    """A case by name."""
    about = json.loads(bytes(_file()[f"{name}/about"]))
    weights, grads = (_split(_file()[f"{name}/{key}"].astype(np.float32), about[key]) for key in ("weights", "grads"))
    prefix = f"{name}/input/"
    inputs = {key.removeprefix(prefix): _file()[key] for key in _file().files if key.startswith(prefix)}
    return Frozen(about["config"], weights, grads, inputs, _file()[f"{name}/result"])


def names() -> list[str]:
    """The names of all cases."""
    return [key.partition("/")[0] for key in _file().files if key.endswith("/about")]


def _split(flat: NDArray[Any], shapes: dict[str, list[int]]) -> Arrays:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def distance(got: Any, expected: NDArray[Any]) -> float:
    """The largest difference, relative to the largest element."""
    values = np.asarray(got.astype("float32").numpy() if hasattr(got, "backend") else got, np.float32)
    assert values.shape == expected.shape
    return float(np.abs(values - expected).max() / np.abs(expected).max())
