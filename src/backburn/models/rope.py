"""The rates of rotary position embeddings, and the ways in which published models stretch them to longer texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from backburn.base.errors import ConfigError
from backburn.base.foreign_files import is_number
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor

#: The ways to stretch rates, and the keys that each needs.
KINDS: dict[str, tuple[str, ...]] = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}  # fmt: skip
#: The ways that depend on the length of the original training texts, and the key of that length.
LENGTHS, LENGTH = ("llama3", "yarn"), "original_max_position_embeddings"
#: Other keys that are read: those of numbers, and others.
_NUMBERS = frozenset(
    {"rope_theta", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
     "mscale_all_dim"}
)  # fmt: skip
_WORDS = frozenset({"rope_type", "type", "truncate"})
#: The range of all numbers, far beyond published models': powers and quotients of others overflow or underflow.
LEAST, MOST = 1e-6, 1e12


def check_scaling(where: str, scaling: Mapping[str, Any] | None, size: int) -> None:
    """Raise :class:`ConfigError` for a ``rope_scaling`` of an unknown kind, or with a key missing or unknown."""
    if scaling is None:
        return
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in KINDS:
        words = f"the type {kind!r:.100}, which is not supported; supported: {', '.join(map(repr, KINDS))}"
        raise ConfigError(f"{where}: rope_scaling has {words}")
    name = f"{where}: rope_scaling of the type {kind!r}"
    for key in KINDS[kind]:
        if not is_number(scaling.get(key)) or scaling[key] <= 0:
            raise ConfigError(f"{name} needs {key}, a number above 0: {scaling!r:.200}")
    for key, value in scaling.items():
        if key == "partial_rotary_factor" and value == 1.0:
            continue
        if key not in _NUMBERS and key not in _WORDS and key not in KINDS[kind]:
            raise ConfigError(f"{name} has {key} = {value!r:.100}, which is not known")
        if key in _NUMBERS and value is not None and (not is_number(value) or value <= 0):
            raise ConfigError(f"{name} has {key} = {value!r:.100}, and takes a number above 0")
        if value is not None and is_number(value) and not LEAST <= value <= MOST:
            raise ConfigError(f"{name} has {key} = {value!r:.100}, and takes numbers from {LEAST:g} to {MOST:g}")
    if kind == "dynamic" and size <= 2:
        raise ConfigError(f"{name} needs heads of more than 2 features (head_dim)")


def rotary_rates(config: Any, length: Any) -> tuple[Any, float]:
    """The angle by which each pair of features is rotated per step, and the factor of cosines and sines.

    ``"dynamic"`` depends on ``length``, the number of steps; if that is a tensor, so are the rates.
    """
    size, base, scaling = config.head_dim, config.rope_theta, config.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor, most = scaling.get("factor", 1.0), config.max_position_embeddings
    if kind == "dynamic":  # NTK-aware: a larger base for longer texts, as bloc97 and emozilla proposed
        longest = length.maximum(most) if is_tensor(length) else max(length, most)
        base = base * (factor * longest / most - (factor - 1)) ** (size / (size - 2))
    powers = [-i / size for i in range(0, size, 2)]
    if is_tensor(base):
        return base ** asarray(powers, dtype=base.dtype, backend=base.backend), 1.0
    rates = [base**power for power in powers]
    if kind == "linear":  # Chen et al., Extending Context Window via Positional Interpolation, 2023
        rates = [rate / factor for rate in rates]
    elif kind == "llama3":
        rates = [_llama3(rate, scaling) for rate in rates]
    elif kind == "yarn":
        return _yarn(rates, base, scaling, most)
    return rates, 1.0


def _llama3(rate: float, scaling: Mapping[str, Any]) -> float:
    """A rate of Llama 3.1: slow ones are divided by ``factor``, fast ones are kept, those between are interpolated."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * rate / (2 * math.pi)
    kept = min(1.0, max(0.0, (turns - low) / (high - low))) if high != low else float(turns >= high)
    return (1 - kept) * rate / scaling["factor"] + kept * rate


def _yarn(rates: list[float], base: float, scaling: Mapping[str, Any], most: int) -> tuple[list[float], float]:
    """The rates of YaRN, by the number of turns within the original length, after Peng et al. (2023)."""
    factor, size = scaling["factor"], 2 * len(rates)
    original = scaling.get("original_max_position_embeddings") or most

    def feature(turns: float) -> float:
        """The fractional index of the pair of features that makes so many turns."""
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = feature(scaling.get("beta_fast") or 32), feature(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high += 0.001 * (low == high)
    ramp = [min(1.0, max(0.0, (i - low) / (high - low))) for i in range(len(rates))]
    made = [rate / factor * slow + rate * (1 - slow) for rate, slow in zip(rates, ramp, strict=True)]

    def spread(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale, one, other = (scaling.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if scale is None:
        scale = spread(one) / spread(other) if one and other else spread(1.0)
    return made, float(scale)
