"""Every instance of every kernel that a launcher may ask for: what the tests compile and run."""

from __future__ import annotations

from backburn_cupy.kernels.geometry import ROW_VARIANTS

# The template parameters that follow the dtype, by family and kernel.
_ROWS = tuple(f"{lanes}, {items}" for lanes, items in ROW_VARIANTS)

KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "softmax": dict.fromkeys(("softmax", "softmax_backward", "log_softmax", "log_softmax_backward"), _ROWS),
    "loss": dict.fromkeys(
        (
            "label_cross_entropy",
            "label_cross_entropy_backward",
            "softmax_cross_entropy",
            "softmax_cross_entropy_backward",
        ),
        _ROWS,
    ),
}


def instances(family: str, c_type: str) -> list[str]:
    """The instances of a family's kernels for elements of ``c_type``."""
    return [
        f"{kernel}<{c_type}{', ' if parameters else ''}{parameters}>"
        for kernel, variants in KERNELS[family].items()
        for parameters in variants
    ]
