"""Products of a batch with a quantized 2048 x 2048 weight, against NumPy's with the same weight in float32."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Figures, case

WIDTH, REPEATS = 2048, 60
BATCHES = (1, 8, 128)
SCHEMES = {
    "int8": "qint8_symmetric_channel0_float32",
    "int4, 64": "qint4_symmetric_block64_float32",
    "int4, 32, half": "qint4_affine_block32_float16",
}


def _figures(product_of: Callable[[str, Any], Callable[[Any], Any]]) -> Figures:
    """The median time of a product for each scheme and batch."""
    import numpy as np

    generator = np.random.default_rng(0)
    weight = generator.normal(size=(WIDTH, WIDTH)).astype(np.float32)
    figures: Figures = {}
    for name, scheme in SCHEMES.items():
        product = product_of(scheme, weight)
        for batch in BATCHES:
            x = generator.normal(size=(batch, WIDTH)).astype(np.float32)
            seconds = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                product(x)
                seconds.append(time.perf_counter() - start)
            figures[f"{name}, batch {batch}"] = sorted(seconds)[REPEATS // 2]
    return figures


@case("quantized product", "backburn")
def quantized() -> Figures:
    from backburn.backend.registry import load_backend
    from backburn.base.dtypes import as_dtype

    k = load_backend("numpy")

    def product_of(scheme: str, weight: Any) -> Callable[[Any], Any]:
        stored = k.quantize(weight, dtype=as_dtype(scheme))  # type: ignore[arg-type]
        return lambda x: k.quantized_linear(x, stored)

    return _figures(product_of)


@case("quantized product", "float32")
def plain() -> Figures:
    return _figures(lambda scheme, weight: lambda x: x @ weight.T)


BARS: list[tuple[str, str, dict[str, float]]] = [
    ("quantized product", "float32", {f"{name}, batch {batch}": 1.0 for name in SCHEMES for batch in BATCHES})
]
