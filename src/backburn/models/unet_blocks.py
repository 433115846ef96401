"""The parts of the blocks of a U-Net."""

from __future__ import annotations

from typing import Any

from backburn.models.attention import ACTIVATIONS, merge_heads, split_heads
from backburn.models.configs import UNetConfig
from backburn.nn import Conv2d, Dropout, GroupNorm, Identity, Linear, Module, functional
from backburn.tensor.rearrange import pad
from backburn.tensor.shape import swapaxes


class ResnetBlock(Module):
    """Two convolutions with a residual connection; the embedding of the step is added between them."""

    def __init__(self, config: UNetConfig, inputs: int, outputs: int) -> None:
        groups, eps = config.norm_num_groups, config.norm_eps
        self.norm1, self.conv1 = GroupNorm(groups, inputs, eps), Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = Linear(4 * config.block_out_channels[0], outputs)
        self.norm2, self.conv2 = GroupNorm(groups, outputs, eps), Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = Conv2d(inputs, outputs, 1) if inputs != outputs else Identity()
        self.act, self.dropout = config.act_fn, Dropout(config.dropout)

    def forward(self, x: Any, step: Any) -> Any:
        act = ACTIVATIONS[self.act]
        y: Any = self.conv1(act(self.norm1(x))) + self.time_emb_proj(act(step))[..., None, None]
        return self.conv_shortcut(x) + self.conv2(self.dropout(act(self.norm2(y))))


class SpatialAttention(Module):
    """Attention between all pixels, with a residual connection."""

    def __init__(self, config: UNetConfig, channels: int) -> None:
        self.head_dim = config.attention_head_dim or channels
        self.group_norm = GroupNorm(config.norm_num_groups, channels, config.norm_eps)
        self.to_q, self.to_k, self.to_v = (Linear(channels, channels) for _ in range(3))
        self.to_out = [Linear(channels, channels)]

    def forward(self, x: Any) -> Any:
        pixels = x.reshape((*x.shape[:-2], x.shape[-2] * x.shape[-1]))
        y = swapaxes(self.group_norm(pixels), -1, -2)
        q, k, v = (split_heads(project(y), self.head_dim) for project in (self.to_q, self.to_k, self.to_v))
        y = self.to_out[0](merge_heads(functional.scaled_dot_product_attention(q, k, v)))
        return x + swapaxes(y, -1, -2).reshape(x.shape)


class Sampler(Module):
    """A convolution that halves an image, or one after doubling it."""

    def __init__(self, channels: int, halves: bool, padding: int = 1) -> None:
        self.halves, self.padding = halves, padding
        self.conv = Conv2d(channels, channels, 3, stride=2 if halves else 1, padding=padding)

    def forward(self, x: Any) -> Any:
        if not self.halves:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        elif not self.padding:
            x = pad(x, [(0, 0)] * (x.ndim - 2) + [(0, 1)] * 2)
        return self.conv(x)
