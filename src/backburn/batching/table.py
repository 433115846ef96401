"""All batching rules: importing this module fills the table."""

from backburn.batching import (  # noqa: F401 - each attaches its rules
    axes,
    elementwise,
    index,
    layers,
    products,
    quantized,
    random,
    shape,
)
