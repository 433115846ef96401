"""The configurations of Llama and of the models that differ from it by their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from backburn.base.errors import ConfigError
from backburn.models.attention import ACTIVATIONS
from backburn.models.config import Config
from backburn.models.rope import check_scaling


@dataclass(kw_only=True)
class LlamaConfig(Config):
    """The sizes of a Llama; see :class:`Llama`. ``head_dim`` is by default ``hidden_size / num_attention_heads``."""

    model_type: ClassVar[str] = "llama"
    SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
        {"hidden_act": tuple(ACTIVATIONS), "use_bidirectional_attention": (None, False)}
    )
    #: Whether the queries, keys and values of this family have a bias; None if ``attention_bias`` says so.
    QKV_BIAS: ClassVar[bool | None] = None
    #: Whether norms multiply by ``1 + weight``, and embeddings by the square root of their length.
    IS_GEMMA: ClassVar[bool] = False

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    attention_bias: bool = False
    attention_dropout: float = 0.0
    mlp_bias: bool = False
    sliding_window: int | None = None
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` for sizes that do not form heads, and rotations that are not known."""
        super().__post_init__()
        name = type(self).__name__
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            words = f"{self.num_attention_heads} heads (num_attention_heads)"
            raise ConfigError(f"{name}: hidden_size {self.hidden_size} does not form {words}")
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ConfigError(
                f"{name}: num_attention_heads {self.num_attention_heads} is a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}, and head_dim {self.head_dim} is even; one of them is not"
            )
        if self.extra.get("rope_parameters") is not None:  # the newer name, for both
            newer = self.extra.pop("rope_parameters")
            if not isinstance(newer, dict):
                raise ConfigError(f"{name}: rope_parameters is a table, not {newer!r:.100}")
            self.rope_theta = newer.get("rope_theta", self.rope_theta)
            self.rope_scaling = {key: x for key, x in newer.items() if key != "rope_theta"}
            return self.__post_init__()
        check_scaling(name, self.rope_scaling)

    def window(self, layer: int) -> int | None:
        """How many steps back the tokens of a layer attend to, themselves included; None for all."""
        return self.sliding_window


@dataclass(kw_only=True)
class MistralConfig(LlamaConfig):
    """The sizes of a Mistral: a Llama without biases whose tokens attend to the last ``sliding_window`` alone."""

    model_type: ClassVar[str] = "mistral"
    intermediate_size: int = 14336
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096


@dataclass(kw_only=True)
class Qwen2Config(LlamaConfig):
    """The sizes of a Qwen2: a Llama whose queries, keys and values have biases.

    With ``use_sliding_window``, layers from ``max_window_layers`` on have a window.
    """

    model_type: ClassVar[str] = "qwen2"
    QKV_BIAS: ClassVar[bool | None] = True
    MAY_BE_ZERO: ClassVar[frozenset[str]] = LlamaConfig.MAY_BE_ZERO | {"max_window_layers"}
    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    def window(self, layer: int) -> int | None:
        return self.sliding_window if self.use_sliding_window and layer >= self.max_window_layers else None


@dataclass(kw_only=True)
class GemmaConfig(LlamaConfig):
    """The sizes of a Gemma: a Llama with other norms, scaled embeddings, a tanh form of GELU, and wider heads."""

    model_type: ClassVar[str] = "gemma"
    IS_GEMMA: ClassVar[bool] = True
    vocab_size: int = 256000
    hidden_size: int = 3072
    intermediate_size: int = 24576
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int | None = 16
    head_dim: int | None = 256
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_act == "gelu":  # the first files say so, and mean this
            self.hidden_act = "gelu_pytorch_tanh"
