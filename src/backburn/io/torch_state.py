"""State dicts with the names and the packing of PyTorch's layers."""

from __future__ import annotations

from backburn.base.errors import DTypeError
from backburn.nn.module import Module, packed_state
from backburn.tensor.classes import Tensor


def torch_state(model: Module) -> dict[str, Tensor]:
    """``model.state_dict()`` with the names and shapes of PyTorch's layers.

    Layers already have PyTorch's names and layouts; parameters that PyTorch packs are packed, such as the projections
    of attention into ``in_proj_weight``. :func:`save_model` writes the result to a file that ``safetensors.torch``
    reads; ``load_state_dict`` takes it back. Raises :class:`DTypeError` for quantized weights.

    >>> import backburn as bb
    >>> state = torch_state(bb.nn.MultiheadAttention(8, 2))
    >>> {name: x.shape for name, x in state.items() if name.startswith("in")}
    {'in_proj_weight': (24, 8), 'in_proj_bias': (24,)}
    """
    for name, x in model.state_dict().items():
        if x.dtype.kind == "quantized":
            raise DTypeError(f"torch_state: {name} is {x.dtype}, which PyTorch's layers do not have; dequantize it")
    return packed_state(model)
