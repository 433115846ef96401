"""The configurations of the models, with the names and the defaults of the published files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from backburn.base.errors import ConfigError
from backburn.models import keys
from backburn.models.attention import ACTIVATIONS
from backburn.models.config import Config
from backburn.models.rope import LENGTH, LENGTHS, MOST, check_scaling


@dataclass(kw_only=True)
class LabelsConfig(Config):
    """The base class of classifiers' configurations: ``id2label`` names the ``num_labels`` classes."""

    id2label: dict[str, Any] | None = None
    num_labels: int | None = None

    def __post_init__(self) -> None:
        """Names the classes by their numbers if they have no names."""
        super().__post_init__()
        self.extra.pop("label2id", None)  # derived from id2label
        if self.id2label is None:
            self.id2label = {str(i): f"LABEL_{i}" for i in range(2 if self.num_labels is None else self.num_labels)}
        are_names = [re.fullmatch(r"\d{1,9}", i) and isinstance(x, str) for i, x in self.id2label.items()]
        if not self.id2label or not all(are_names):
            words = f"a table of names by number, not {self.id2label!r:.100}"
            raise ConfigError(f"{type(self).__name__}: id2label is {words}")
        if self.num_labels not in (None, len(self.id2label)):
            words = f"{self.num_labels}, and id2label names {len(self.id2label)}"
            raise ConfigError(f"{type(self).__name__}: num_labels is {words}")
        self.num_labels = len(self.id2label)

    def to_dict(self) -> dict[str, Any]:
        """The table for a ``config.json``, without ``num_labels``, which follows from the names."""
        values = {key: x for key, x in super().to_dict().items() if key != "num_labels"}
        return values | {"label2id": {name: int(i) for i, name in (self.id2label or {}).items()}}


def padding_row(config: Any) -> int | None:
    """The row of the embeddings for padding, which gets no gradient."""
    row = config.pad_token_id
    return row if row is not None and 0 <= row < config.vocab_size else None


def _check_heads(config: Any) -> None:
    if config.hidden_size % config.num_attention_heads:
        words = f"hidden_size {config.hidden_size} does not form {config.num_attention_heads} heads"
        raise ConfigError(f"{type(config).__name__}: {words} (num_attention_heads)")


@dataclass(kw_only=True)
class DecoderConfig(Config):
    """The base class of decoders' configurations: the tokens that begin, end and pad a text, for generating."""

    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None


@dataclass(kw_only=True)
class LlamaConfig(DecoderConfig):
    """The sizes of a Llama; see :class:`Llama`. ``head_dim`` is by default ``hidden_size / num_attention_heads``."""

    model_type: ClassVar[str] = "llama"
    IDLE: ClassVar[frozenset[str]] = keys.LLAMA
    NOT_READ: ClassVar[frozenset[str]] = frozenset({"sliding_window"})
    SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
        {
            "hidden_act": tuple(ACTIVATIONS), "use_bidirectional_attention": (None, False),
            "partial_rotary_factor": (None, 1.0), "hidden_activation": (None, "gelu_pytorch_tanh"),
            "rope_interleaved": (None, False),
        }
    )  # fmt: skip
    #: Whether the queries, keys and values of this family have a bias; None if ``attention_bias`` decides.
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
        """Raises :class:`ConfigError` for sizes that do not form heads, and unknown rotations."""
        super().__post_init__()
        name = type(self).__name__
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            words = f"{self.num_attention_heads} heads (num_attention_heads)"
            raise ConfigError(f"{name}: hidden_size {self.hidden_size} does not form {words}")
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ConfigError(
                f"{name}: num_attention_heads {self.num_attention_heads} must be a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}, and head_dim {self.head_dim} must be even"
            )
        self._read_rotation(name)
        if not 1 < self.rope_theta <= MOST:
            raise ConfigError(f"{name}: rope_theta is {self.rope_theta}, and has to be above 1 and at most {MOST:g}")
        check_scaling(name, self.rope_scaling, self.head_dim)

    def _read_rotation(self, name: str) -> None:
        """Read the rotation from the keys of a file, with the precedence of transformers.

        That is ``rope_scaling``, else ``rope_parameters``; a ``rope_theta`` inside overrides the one outside, but an
        original length outside overrides the one inside.
        """
        newer = self.extra.pop("rope_parameters", None)
        if not isinstance(newer, dict | None):
            raise ConfigError(f"{name}: rope_parameters is a table, not {newer!r:.100}")
        given = self.rope_scaling or newer
        if given is not None:
            theta = given.get("rope_theta", self.rope_theta)
            if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not math.isfinite(theta):
                raise ConfigError(f"{name}: rope_theta is a number, not {theta!r:.100}")
            self.rope_theta, self.rope_scaling = theta, {key: x for key, x in given.items() if key != "rope_theta"}
            kind, key = self.rope_scaling.get("rope_type", self.rope_scaling.get("type")), LENGTH
            if kind in LENGTHS and self.extra.get(key) is not None:
                self.rope_scaling[key] = self.extra[key]
            elif kind in LENGTHS and self.rope_scaling.get(key) is None:
                self.rope_scaling[key] = self.max_position_embeddings

    def widths(self) -> tuple[int, int, int]:
        """The features of a head, of all heads of queries, and of all heads of keys or values."""
        width = self.head_dim or self.hidden_size // self.num_attention_heads
        return width, self.num_attention_heads * width, (self.num_key_value_heads or self.num_attention_heads) * width

    def window(self, layer: int) -> int | None:
        """How many steps back the tokens of a layer attend to, themselves included; None for all."""
        return self.sliding_window


@dataclass(kw_only=True)
class MistralConfig(LlamaConfig):
    """The sizes of a Mistral: a Llama without biases whose tokens attend only to the last ``sliding_window``."""

    model_type: ClassVar[str] = "mistral"
    IDLE: ClassVar[frozenset[str]] = keys.MISTRAL
    NOT_READ: ClassVar[frozenset[str]] = frozenset()
    intermediate_size: int = 14336
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096


@dataclass(kw_only=True)
class Qwen2Config(LlamaConfig):
    """The sizes of a Qwen2: a Llama whose queries, keys and values have biases.

    With ``use_sliding_window``, layers from ``max_window_layers`` on have a window, or those that ``layer_types``
    names.
    """

    model_type: ClassVar[str] = "qwen2"
    IDLE: ClassVar[frozenset[str]] = keys.QWEN2
    NOT_READ: ClassVar[frozenset[str]] = frozenset()
    QKV_BIAS: ClassVar[bool | None] = True
    MAY_BE_ZERO: ClassVar[frozenset[str]] = LlamaConfig.MAY_BE_ZERO | {"max_window_layers"}
    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` unless ``layer_types`` has a known type for each layer."""
        super().__post_init__()
        known, given = ("full_attention", "sliding_attention"), self.layer_types
        if given is not None and (len(given) != self.num_hidden_layers or not set(given) <= set(known)):
            words = f"{' or '.join(map(repr, known))} for each of {self.num_hidden_layers} layers"
            raise ConfigError(f"Qwen2Config: layer_types has {words}, and not {given!r:.200}")

    def window(self, layer: int) -> int | None:
        """How many steps back the tokens of a layer attend to, themselves included; None for all."""
        slides = layer >= self.max_window_layers
        if self.layer_types is not None:
            slides = self.layer_types[layer] == "sliding_attention"
        return self.sliding_window if self.use_sliding_window and slides else None


@dataclass(kw_only=True)
class GemmaConfig(LlamaConfig):
    """The sizes of a Gemma: a Llama with other norms, scaled embeddings, a tanh form of GELU, and wider heads."""

    model_type: ClassVar[str] = "gemma"
    IDLE: ClassVar[frozenset[str]] = keys.LLAMA
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
        if self.hidden_act == "gelu":  # the first files say so, but mean this
            self.hidden_act = "gelu_pytorch_tanh"


@dataclass(kw_only=True)
class GPT2Config(DecoderConfig):
    """The sizes of a GPT-2; see :class:`GPT2`. ``n_inner`` is by default ``4 * n_embd``."""

    model_type: ClassVar[str] = "gpt2"
    IDLE: ClassVar[frozenset[str]] = keys.GPT2
    SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
        {"activation_function": tuple(ACTIVATIONS), "add_cross_attention": (False,)}
    )

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` for features that do not form heads."""
        super().__post_init__()
        if self.n_embd % self.n_head:
            raise ConfigError(f"GPT2Config: n_embd {self.n_embd} does not form n_head {self.n_head} heads")


@dataclass(kw_only=True)
class ViTConfig(LabelsConfig):
    """The sizes of a vision transformer; see :class:`ViT`. An image or a patch has one length, or height and width."""

    model_type: ClassVar[str] = "vit"
    IDLE: ClassVar[frozenset[str]] = keys.VIT
    SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType({"hidden_act": tuple(ACTIVATIONS)})

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-12
    image_size: int | list[int] = 224
    patch_size: int | list[int] = 16
    num_channels: int = 3
    qkv_bias: bool = True
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` for features that do not form heads, and patches that do not fit the image."""
        super().__post_init__()
        _check_heads(self)
        for key in ("image_size", "patch_size"):
            if len(self.lengths(key)) != 2 or min(self.lengths(key)) < 1:
                raise ConfigError(f"ViTConfig: {key} is one length, or a height and a width, not {getattr(self, key)}")
        if any(n < m for n, m in zip(self.lengths("image_size"), self.lengths("patch_size"), strict=True)):
            raise ConfigError(f"ViTConfig: patch_size {self.patch_size} is larger than image_size {self.image_size}")

    def lengths(self, key: str) -> list[int]:
        """The height and the width of ``image_size`` or ``patch_size``."""
        given = getattr(self, key)
        return [given, given] if isinstance(given, int) else given


@dataclass(kw_only=True)
class BertConfig(LabelsConfig):
    """The sizes of a BERT; see :class:`Bert`."""

    model_type: ClassVar[str] = "bert"
    IDLE: ClassVar[frozenset[str]] = keys.BERT
    SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
        {
            "hidden_act": tuple(ACTIVATIONS), "position_embedding_type": ("absolute",), "is_decoder": (False,),
            "add_cross_attention": (False,),
        }
    )  # fmt: skip

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` for features that do not form heads."""
        super().__post_init__()
        _check_heads(self)


@dataclass(kw_only=True)
class ResNetConfig(LabelsConfig):
    """The sizes of a ResNet; see :class:`ResNet`. ``layer_type`` is ``"basic"`` or ``"bottleneck"``."""

    model_type: ClassVar[str] = "resnet"
    IDLE: ClassVar[frozenset[str]] = keys.RESNET
    SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
        {"hidden_act": tuple(ACTIVATIONS), "layer_type": ("bottleneck", "basic")}
    )

    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048])
    depths: list[int] = field(default_factory=lambda: [3, 4, 6, 3])
    layer_type: str = "bottleneck"
    hidden_act: str = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` unless each stage has a width and a number of layers."""
        super().__post_init__()
        if len(self.hidden_sizes) != len(self.depths) or min([0, *self.depths, *self.hidden_sizes][1:] or [0]) < 1:
            words = f"{self.hidden_sizes} and {self.depths}"
            raise ConfigError(f"ResNetConfig: hidden_sizes and depths have a number for each stage, not {words}")
        if sum(self.depths) > 10_000:
            raise ConfigError(f"ResNetConfig: depths is {self.depths}, and may be 10000 layers at most")


_DOWN, _UP = ("DownBlock2D", "AttnDownBlock2D"), ("UpBlock2D", "AttnUpBlock2D")


@dataclass(kw_only=True)
class UNetConfig(Config):
    """The sizes of a U-Net; see :class:`UNet`. The types of blocks say which have attention."""

    IDLE: ClassVar[frozenset[str]] = keys.UNET
    SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
        {
            "act_fn": tuple(ACTIVATIONS), "time_embedding_type": ("positional",), "class_embed_type": (None,),
            "num_class_embeds": (None,), "resnet_time_scale_shift": ("default",), "downsample_type": ("conv",),
            "upsample_type": ("conv",), "mid_block_type": ("UNetMidBlock2D",), "mid_block_scale_factor": (1, 1.0),
            "attn_norm_num_groups": (None,), "time_embedding_dim": (None,),
        }
    )  # fmt: skip
    MAY_BE_ZERO: ClassVar[frozenset[str]] = Config.MAY_BE_ZERO | {"freq_shift", "downsample_padding"}

    in_channels: int = 3
    out_channels: int = 3
    center_input_sample: bool = False
    freq_shift: int = 0
    flip_sin_to_cos: bool = True
    down_block_types: list[str] = field(default_factory=lambda: ["DownBlock2D", *3 * ["AttnDownBlock2D"]])
    up_block_types: list[str] = field(default_factory=lambda: [*3 * ["AttnUpBlock2D"], "UpBlock2D"])
    block_out_channels: list[int] = field(default_factory=lambda: [224, 448, 672, 896])
    layers_per_block: int = 2
    downsample_padding: int = 1
    dropout: float = 0.0
    act_fn: str = "silu"
    attention_head_dim: int | None = 8
    norm_num_groups: int = 32
    norm_eps: float = 1e-5
    add_attention: bool = True

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` for unknown blocks, and for lists of different lengths."""
        super().__post_init__()
        if not len(self.down_block_types) == len(self.up_block_types) == len(self.block_out_channels) > 0:
            raise ConfigError("UNetConfig: down_block_types, up_block_types and block_out_channels have equal lengths")
        for key, known in (("down_block_types", _DOWN), ("up_block_types", _UP)):
            if wrong := [name for name in getattr(self, key) if name not in known]:
                raise ConfigError(
                    f"UNetConfig: {key} has {wrong[0]!r}, which is not supported; {' and '.join(known)} are"
                )
