"""The choice of the next token from logits, on the host in float64, so that seeds mean the same on every backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from backburn.base.errors import ArgumentError

Array = Any


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose a token: the likeliest one, or with a ``temperature`` a random one of the likely ones.

    The options are applied in this order, and keep at least the likeliest token:

    - ``repetition_penalty``: positive logits of earlier tokens are divided by it, negative ones multiplied (Keskar et
      al., CTRL, 2019);
    - ``temperature`` divides the logits; 0 takes the likeliest token;
    - ``top_k``: only so many of the likeliest; 0 for all;
    - ``top_p``: only the likeliest that together have this probability (Holtzman et al., 2020);
    - ``min_p``: only those of at least this share of the largest probability (Nguyen et al., 2024).

    Raises :class:`ArgumentError` for values out of range.

    >>> Sampling(temperature=0.8, top_p=0.9).choose([0.0, 5.0, 1.0], number=0.5)
    1
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Check the options."""
        for name, low, high, words in (
            ("temperature", 0.0, float("inf"), "0 or more"),
            ("top_p", 0.0, 1.0, "above 0 and at most 1"),
            ("min_p", 0.0, 1.0, "from 0 to 1"),
            ("repetition_penalty", 0.0, float("inf"), "above 0"),
        ):
            value: Any = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not low <= value <= high or value == float("inf") or ("above" in words and not value):
                raise ArgumentError(f"generate: {name} is {words}, not {value!r:.100}")
        top_k: Any = self.top_k
        if not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 0:
            raise ArgumentError(f"generate: top_k is a number of tokens, or 0 for all, not {top_k!r:.100}")

    def choose(self, logits: Array, number: float = 0.0, earlier: Iterable[int] = ()) -> int:
        """The token for logits (vocab_size,); ``number``, uniform in 0 to 1, decides among the likely ones.

        ``earlier`` are the tokens that a ``repetition_penalty`` counts as repeated. Raises :class:`ArgumentError` where
        a logit is NaN.
        """
        values = np.array(logits, np.float64)
        if np.isnan(values).any():
            raise ArgumentError("generate: the model's logits are NaN, so no next token can be chosen")
        if self.repetition_penalty != 1.0 and (seen := sorted({*earlier})):
            old = values[seen]
            with np.errstate(over="ignore"):  # of a penalty near 0
                values[seen] = np.where(old > 0.0, old / self.repetition_penalty, old * self.repetition_penalty)
        if self.temperature == 0.0:
            return int(values.argmax())
        order = np.argsort(-values, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        with np.errstate(over="ignore", invalid="ignore"):  # of impossible tokens, -inf
            weights = np.exp((values[order] - values[order[0]]) / self.temperature)
        weights[0] = 1.0  # also of an infinite logit
        totals = np.cumsum(weights)
        before = (totals - weights) / totals[-1]
        likely = (before < self.top_p) & (weights >= self.min_p)
        likely[0] = True
        totals = np.cumsum(np.where(likely, weights, 0.0))
        return int(
            order[np.searchsorted(totals, number * totals[-1], side="right").clip(0, np.flatnonzero(likely)[-1])]
        )


def uniform(seed: int, row: int, step: int) -> float:
    """The number in 0 to 1 that chooses the token of a text at a step: the same for every backend and every batch."""
    draws: Any = np.random.Generator(np.random.Philox(key=[seed, row], counter=[step, 0, 0, 0]))
    return float(draws.random())
