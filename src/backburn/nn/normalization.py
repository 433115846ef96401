"""Normalization layers."""

from __future__ import annotations

from typing import Any

from backburn.backend.contract import AnyBackend
from backburn.base.dtypes import float64, int64
from backburn.base.errors import ArgumentError, GraphError, ShapeError
from backburn.nn import functional, init
from backburn.nn.linear import sizes
from backburn.nn.module import Module, parameter
from backburn.nn.spatial import Spatial
from backburn.tensor import creation
from backburn.tensor.classes import FloatTensor, IntTensor, Tensor
from backburn.tensor.core.dispatch import cast, tensor_operand
from backburn.tensor.core.levels import inner_of
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axis_of, bounded, flags, integers_of, number


class LayerNorm(Module):
    """Each example minus its mean, divided by its standard deviation, times ``weight`` plus ``bias``.

    ``normalized_shape`` is the length of the last axis, or the lengths of the last axes, over which the mean is taken.
    Without ``elementwise_affine`` there are no ``weight`` and ``bias``, and with ``bias=False`` no ``bias``. After Ba,
    Kiros and Hinton (2016).

    >>> import backburn as bb
    >>> LayerNorm(4)(bb.asarray([[1.0, 2.0, 3.0, 4.0]])).shape
    (1, 4)
    """

    weight: FloatTensor | None
    bias: FloatTensor | None

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self.normalized_shape = _last_lengths("LayerNorm", normalized_shape)
        self.eps = _eps("LayerNorm", eps)
        flags("LayerNorm", elementwise_affine=elementwise_affine, bias=bias)
        self.weight, self.bias = _affine(self.normalized_shape, elementwise_affine, bias)

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x``."""
        check_last_axes("LayerNorm", x, self.normalized_shape)
        axes = tuple(range(-len(self.normalized_shape), 0))
        return functional.layer_norm(x, self.weight, self.bias, axis=axes, eps=self.eps)


class RMSNorm(Module):
    """Each example divided by its root mean square, times ``weight``: :class:`LayerNorm` without mean and bias.

    ``eps=None`` is the machine epsilon of the input's dtype (of float32 for 16-bit dtypes). After Zhang and Sennrich
    (2019).

        >>> import backburn as bb
        >>> print(RMSNorm(2)(bb.asarray([[1.0, -7.0]])).numpy().round(2))
        [[ 0.2 -1.4]]
    """

    weight: FloatTensor | None

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float | None = None, elementwise_affine: bool = True
    ) -> None:
        self.normalized_shape = _last_lengths("RMSNorm", normalized_shape)
        self.eps = None if eps is None else _eps("RMSNorm", eps)
        flags("RMSNorm", elementwise_affine=elementwise_affine)
        self.weight, _ = _affine(self.normalized_shape, elementwise_affine, False)

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x``."""
        check_last_axes("RMSNorm", x, self.normalized_shape)
        axes = tuple(range(-len(self.normalized_shape), 0))
        eps = (2.0**-52 if x.dtype is float64 else 2.0**-23) if self.eps is None else self.eps
        return functional.rms_norm(x, self.weight, axis=axes, eps=eps)


class BatchNorm(Spatial):
    """Each channel minus its mean, divided by its standard deviation, times ``weight`` plus ``bias``.

    The channels are ``axis``, of length ``num_features``, in an input of any rank; :class:`BatchNorm1d`,
    :class:`BatchNorm2d` and :class:`BatchNorm3d` check the rank. In training mode, the mean and variance are those of
    the batch, and the buffers ``running_mean`` and ``running_var`` are moving averages of them with weight ``momentum``
    (of the unbiased variance); otherwise the buffers are used. With ``momentum=None`` they are the means over all
    batches, which the buffer ``num_batches_tracked`` counts. Without ``track_running_stats`` there are no buffers (they
    are None), and the statistics of the batch are used in every mode. Without ``affine`` there are no ``weight`` and
    ``bias``. After Ioffe and Szegedy (2015).

    >>> import backburn as bb
    >>> layer = BatchNorm(2)
    >>> layer(bb.asarray([[1.0, 2.0], [3.0, 6.0]])).shape, layer.running_mean
    ((2, 2), Tensor([0.2, 0.4], dtype=float32, backend=autodiff(numpy)))
    """

    ABOUT = """
    The channels are axis 1, as in all layers with spatial axes; the options are those of :class:`BatchNorm`.

    >>> import backburn as bb
    >>> NAME(3)(bb.zeros((2, 3, <4>))).shape
    (2, 3, <4>)
    """
    TAKES_VECTORS = True
    OPTIONAL_STATE = frozenset({"num_batches_tracked"})
    weight: FloatTensor | None
    bias: FloatTensor | None
    running_mean: FloatTensor  # None without track_running_stats
    running_var: FloatTensor
    num_batches_tracked: IntTensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
        axis: int = 1,
    ) -> None:
        name = type(self).__name__
        (self.num_features,) = sizes(name, num_features=num_features)
        flags(name, affine=affine, track_running_stats=track_running_stats, bias=bias)
        if momentum is not None:
            bounded(name, "momentum", momentum, least=0, most=1)
        self.eps = _eps(name, eps)
        self.momentum = momentum
        self.axis = axis
        self.weight, self.bias = _affine((self.num_features,), affine, bias)
        self.register_buffer("running_mean", init.zeros((self.num_features,)) if track_running_stats else None)
        self.register_buffer("running_var", init.ones((self.num_features,)) if track_running_stats else None)
        self.num_batches_tracked = creation.zeros((), dtype=int64) if track_running_stats else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized batch, of the shape of ``x``.

        Raises :class:`ShapeError` for another number of channels, and in training mode for fewer than two values per
        channel; :class:`GraphError` in training mode inside ``vmap``, where each example would have its own statistics.
        """
        name, channels = type(self).__name__, self.num_features
        self._check(x)
        axis = axis_of(name, x, self.axis)
        if x.shape[axis] != channels:
            raise ShapeError(
                f"{name}: made for {channels} channels on axis {self.axis}, where the input has {x.shape[axis]}: "
                f"{describe((x,))}"
            )
        tracks: bool = self.running_mean is not None
        if tracks and not self.training:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, axis=self.axis, eps=self.eps
            )
        count = x.size // channels
        if count < 2 and self.training:
            few = "one value has" if count else "without a value there is"
            raise ShapeError(f"{name}: {few} no variance: {describe((x,))} in training mode")
        result, mean, variance = functional.batch_norm_training(x, self.weight, self.bias, axis=self.axis, eps=self.eps)
        if tracks:
            batches: Any = self.num_batches_tracked + 1  # type: ignore[operator]  # one of three buffers
            part = 1.0 / cast(batches, self.running_mean.dtype) if self.momentum is None else self.momentum
            self.running_mean = self._moved(self.running_mean, mean, part)
            self.running_var = self._moved(self.running_var, variance * (count / (count - 1)), part)
            self.num_batches_tracked = batches
        return result

    def _moved(self, old: FloatTensor, new: Tensor, part: Any) -> FloatTensor:
        """``old``, moved towards ``new``: a constant on the backend of ``old``, in its dtype."""
        try:
            value = lowered(new, old.backend)
        except GraphError as error:
            raise GraphError(
                "BatchNorm: in training mode, the mean of the batch differs between the examples of vmap, but the "
                "model keeps only one. Use the one that it keeps with model.eval(), or GroupNorm or LayerNorm"
            ) from error
        return cast(old * (1.0 - part) + value * part, old.dtype)


class BatchNorm1d(BatchNorm, rank=1):
    """Batch normalization with one spatial axis, or none."""


class BatchNorm2d(BatchNorm, rank=2):
    """Batch normalization with two spatial axes."""


class BatchNorm3d(BatchNorm, rank=3):
    """Batch normalization with three spatial axes."""


class GroupNorm(Module):
    """:class:`LayerNorm` of each example over ``num_groups`` groups of the ``num_channels``, which are axis 1.

    ``weight`` and ``bias`` have one value for each channel; without ``affine`` there are none. After Wu and He (2018).

    >>> import backburn as bb
    >>> GroupNorm(2, 6)(bb.zeros((8, 6, 5, 5))).shape
    (8, 6, 5, 5)
    """

    weight: FloatTensor | None
    bias: FloatTensor | None

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, bias: bool = True
    ) -> None:
        groups, channels = sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if channels % groups:
            raise ArgumentError(f"GroupNorm: {channels} channels do not form {groups} groups of equal size")
        flags("GroupNorm", affine=affine, bias=bias)
        self.num_groups = groups
        self.num_channels = channels
        self.eps = _eps("GroupNorm", eps)
        self.weight, self.bias = _affine((channels,), affine, bias)

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x``."""
        check_channels("GroupNorm", x, self.num_channels)
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, eps=self.eps)


class InstanceNorm(Spatial):
    """Each channel of each example minus its mean over the spatial axes, divided by its standard deviation over them.

    With ``affine``, times ``weight`` plus ``bias``, with one value for each of the ``num_features`` channels. The input
    is of any rank; :class:`InstanceNorm1d`, :class:`InstanceNorm2d` and :class:`InstanceNorm3d` check it. After
    Ulyanov, Vedaldi and Lempitsky (2016).

    >>> import backburn as bb
    >>> InstanceNorm(2)(bb.asarray([[[1.0, -1.0], [5.0, 5.0]]])).numpy().round(2).tolist()
    [[[1.0, -1.0], [0.0, 0.0]]]
    """

    ABOUT = """
    The channels are axis 1; the options are those of :class:`InstanceNorm`.

    >>> import backburn as bb
    >>> NAME(3)(bb.zeros((2, 3, <4>))).shape
    (2, 3, <4>)
    """
    weight: FloatTensor | None
    bias: FloatTensor | None

    def __init__(self, num_features: int, eps: float = 1e-5, *, affine: bool = False, bias: bool = True) -> None:
        name = type(self).__name__
        (self.num_features,) = sizes(name, num_features=num_features)
        flags(name, affine=affine, bias=bias)
        self.eps = _eps(name, eps)
        self.weight, self.bias = _affine((self.num_features,), affine, bias)

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x``."""
        self._check(x)
        check_channels(type(self).__name__, x, self.num_features)
        return functional.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)


class InstanceNorm1d(InstanceNorm, rank=1):
    """Instance normalization with one spatial axis."""


class InstanceNorm2d(InstanceNorm, rank=2):
    """Instance normalization with two spatial axes."""


class InstanceNorm3d(InstanceNorm, rank=3):
    """Instance normalization with three spatial axes."""


class LocalResponseNorm(Module):
    """Each element divided by a power of the mean of squares over ``size`` neighbouring channels.

    The divisor is ``(k + alpha * mean)**beta``; see :func:`functional.local_response_norm`. After Krizhevsky, Sutskever
    and Hinton (2012).

    >>> import backburn as bb
    >>> LocalResponseNorm(5)(bb.ones((2, 6, 4, 4))).shape
    (2, 6, 4, 4)
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        (self.size,) = sizes("LocalResponseNorm", size=size)
        self.alpha = number("LocalResponseNorm", "alpha", alpha)
        self.beta = number("LocalResponseNorm", "beta", beta)
        self.k = number("LocalResponseNorm", "k", k)

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x`` (examples, channels, ...)."""
        return functional.local_response_norm(x, self.size, alpha=self.alpha, beta=self.beta, k=self.k)


def _affine(shape: tuple[int, ...], weight: bool, bias: bool) -> tuple[FloatTensor | None, FloatTensor | None]:
    """The initial weight and bias of a normalization; no bias without a weight."""
    return (
        parameter(init.ones(shape)) if weight else None,
        parameter(init.zeros(shape)) if weight and bias else None,
    )


def _eps(layer: str, eps: Any) -> float:
    return bounded(layer, "eps", eps, least=0)


def _last_lengths(layer: str, shape: Any) -> tuple[int, ...]:
    """The lengths of the last axes, at least one."""
    if not (lengths := integers_of(layer, "normalized_shape", shape)):
        raise ArgumentError(f"{layer}: normalized_shape has the length of one axis or more, not {shape!r}")
    for length in lengths:
        sizes(layer, normalized_shape=length)
    return lengths


def lowered(x: Tensor, backend: AnyBackend) -> Tensor:
    """``x`` without history on ``backend``, its own or an inner one."""
    while x.backend is not backend and inner_of(x.backend) is not None:
        x = x.inner()
    return x.detach()


def check_last_axes(layer: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise :class:`ShapeError` unless the last axes of the input have the lengths ``shape``."""
    tensor_operand(layer, x)
    if x.shape[len(x.shape) - len(shape) :] != shape:
        raise ShapeError(f"{layer}: made for inputs of shape [..., {str(list(shape))[1:-1]}], not {describe((x,))}")


def check_channels(layer: str, x: Tensor, channels: int) -> None:
    """Raise :class:`ShapeError` unless axis 1 of the input has the length ``channels``."""
    tensor_operand(layer, x)
    if x.ndim < 2 or x.shape[1] != channels:
        raise ShapeError(f"{layer}: made for inputs of shape [N, {channels}, ...], not {describe((x,))}")
