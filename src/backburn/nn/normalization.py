"""Normalization layers."""

from __future__ import annotations

from typing import Any

from backburn.backend.contract import AnyBackend
from backburn.base.errors import ArgumentError, GraphError, ShapeError
from backburn.nn import functional, init
from backburn.nn.linear import sizes
from backburn.nn.module import Module, parameter
from backburn.tensor import create
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import cast, tensor_operand
from backburn.tensor.levels import inner_of
from backburn.tensor.messages import describe
from backburn.tensor.options import axis_of, bounded, flags, integers_of, number


class LayerNorm(Module):
    """Each example minus its mean, divided by its standard deviation, times ``weight`` plus ``bias``.

    ``shape`` is the length of the last axis, or the lengths of the last axes, over which the mean is taken. After Ba,
    Kiros and Hinton (2016).

    >>> import backburn as bb
    >>> LayerNorm(4)(bb.asarray([[1.0, 2.0, 3.0, 4.0]])).shape
    (1, 4)
    """

    weight: FloatTensor | None
    bias: FloatTensor | None

    def __init__(self, shape: int | tuple[int, ...], eps: float = 1e-5, weight: bool = True, bias: bool = True) -> None:
        self.shape = _last_lengths("LayerNorm", shape)
        self.eps = _eps("LayerNorm", eps)
        flags("LayerNorm", weight=weight, bias=bias)
        self.weight = parameter(init.ones(self.shape)) if weight else None
        self.bias = parameter(init.zeros(self.shape)) if bias else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x``."""
        check_last_axes("LayerNorm", x, self.shape)
        axes = tuple(range(-len(self.shape), 0))
        return functional.layer_norm(x, self.weight, self.bias, axis=axes, eps=self.eps)


class RMSNorm(Module):
    """Each example divided by its root mean square, times ``weight``: :class:`LayerNorm` without mean and bias.

    After Zhang and Sennrich (2019).

        >>> import backburn as bb
        >>> print(RMSNorm(2)(bb.asarray([[1.0, -7.0]])).numpy().round(2))
        [[ 0.2 -1.4]]
    """

    weight: FloatTensor | None

    def __init__(self, shape: int | tuple[int, ...], eps: float = 1e-5, weight: bool = True) -> None:
        self.shape = _last_lengths("RMSNorm", shape)
        self.eps = _eps("RMSNorm", eps)
        flags("RMSNorm", weight=weight)
        self.weight = parameter(init.ones(self.shape)) if weight else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x``."""
        check_last_axes("RMSNorm", x, self.shape)
        axes = tuple(range(-len(self.shape), 0))
        return functional.rms_norm(x, self.weight, axis=axes, eps=self.eps)


class BatchNorm(Module):
    """Each channel minus its mean, divided by its standard deviation, times ``weight`` plus ``bias``.

    The channels are ``axis``, of length ``channels``. In training mode, the mean and variance are those of the batch,
    and the buffers ``running_mean`` and ``running_var`` are moving averages of them with weight ``momentum`` (of the
    unbiased variance); otherwise the buffers are used. With ``momentum=None`` the buffers are the means over all
    batches, which a third buffer, ``batches``, counts. Without ``track_running_stats`` there are no buffers (they are
    None), and the statistics of the batch are used in every mode. Without ``affine`` there are no ``weight`` and
    ``bias``. After Ioffe and Szegedy (2015).

    >>> import backburn as bb
    >>> layer = BatchNorm(2)
    >>> layer(bb.asarray([[1.0, 2.0], [3.0, 6.0]])).shape, layer.running_mean
    ((2, 2), Tensor([0.2, 0.4], dtype=float32, backend=autodiff(numpy)))
    """

    weight: FloatTensor | None
    bias: FloatTensor | None
    running_mean: FloatTensor  # None where there are none, which is rare
    running_var: FloatTensor

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        axis: int = 1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        (channels,) = sizes("BatchNorm", channels=channels)
        flags("BatchNorm", affine=affine, track_running_stats=track_running_stats)
        if momentum is not None:
            bounded("BatchNorm", "momentum", momentum, least=0, most=1)
        self._channels = channels
        self.eps = _eps("BatchNorm", eps)
        self.momentum = momentum
        self.axis = axis
        self.weight = parameter(init.ones((channels,))) if affine else None
        self.bias = parameter(init.zeros((channels,))) if affine else None
        self.register_buffer("running_mean", init.zeros((channels,)) if track_running_stats else None)
        self.register_buffer("running_var", init.ones((channels,)) if track_running_stats else None)
        self.batches = create.zeros((), dtype="int64") if momentum is None and track_running_stats else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized batch, of the shape of ``x``.

        Raises :class:`ShapeError` for another number of channels, and in training mode for fewer than two values per
        channel; :class:`GraphError` in training mode inside ``vmap``, where each example would have its own statistics.
        """
        channels = self._channels
        axis = axis_of("BatchNorm", tensor_operand("BatchNorm", x), self.axis)
        if x.shape[axis] != channels:
            raise ShapeError(
                f"BatchNorm: made for {channels} channels on axis {self.axis}, where the input has {x.shape[axis]}: "
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
            raise ShapeError(f"BatchNorm: {few} no variance: {describe((x,))} in training mode")
        result, mean, variance = functional.batch_norm_training(x, self.weight, self.bias, axis=self.axis, eps=self.eps)
        if tracks:
            batches = None if self.batches is None else self.batches + 1
            part = self.momentum if batches is None else 1.0 / cast(batches, self.running_mean.dtype)
            self.running_mean = self._moved(self.running_mean, mean, part)
            self.running_var = self._moved(self.running_var, variance * (count / (count - 1)), part)
            self.batches = batches
        return result

    def _moved(self, old: FloatTensor, new: Tensor, part: Any) -> FloatTensor:
        """``old``, moved towards ``new``: a constant on the backend of ``old``, in its dtype."""
        try:
            value = lowered(new, old.backend)
        except GraphError as error:
            raise GraphError(
                "BatchNorm: in training mode, the mean of its batch differs between the examples of vmap, and the "
                "model keeps one. model.eval() uses the one that it keeps; GroupNorm and LayerNorm need none"
            ) from error
        return cast(old * (1.0 - part) + value * part, old.dtype)


class GroupNorm(Module):
    """:class:`LayerNorm` of each example over ``groups`` groups of the ``channels``, which are axis 1.

    ``weight`` and ``bias`` have one value for each channel. After Wu and He (2018).

    >>> import backburn as bb
    >>> GroupNorm(2, 6)(bb.zeros((8, 6, 5, 5))).shape
    (8, 6, 5, 5)
    """

    weight: FloatTensor | None
    bias: FloatTensor | None

    def __init__(self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        groups, channels = sizes("GroupNorm", groups=groups, channels=channels)
        if channels % groups:
            raise ArgumentError(f"GroupNorm: {channels} channels do not form {groups} groups of equal size")
        flags("GroupNorm", affine=affine)
        self.groups = groups
        self.channels = channels
        self.eps = _eps("GroupNorm", eps)
        self.weight = parameter(init.ones((channels,))) if affine else None
        self.bias = parameter(init.zeros((channels,))) if affine else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x``."""
        check_channels("GroupNorm", x, self.channels)
        return functional.group_norm(x, self.groups, self.weight, self.bias, eps=self.eps)


class InstanceNorm(Module):
    """Each channel of each example minus its mean over the spatial axes, divided by its standard deviation over them.

    With ``affine``, times ``weight`` plus ``bias``, of one value for each of the ``channels``. After Ulyanov, Vedaldi
    and Lempitsky (2016).

    >>> import backburn as bb
    >>> InstanceNorm(2)(bb.asarray([[[1.0, -1.0], [5.0, 5.0]]])).numpy().round(2).tolist()
    [[[1.0, -1.0], [0.0, 0.0]]]
    """

    weight: FloatTensor | None
    bias: FloatTensor | None

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = False) -> None:
        (channels,) = sizes("InstanceNorm", channels=channels)
        flags("InstanceNorm", affine=affine)
        self.channels = channels
        self.eps = _eps("InstanceNorm", eps)
        self.weight = parameter(init.ones((channels,))) if affine else None
        self.bias = parameter(init.zeros((channels,))) if affine else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized examples, of the shape of ``x``."""
        check_channels("InstanceNorm", x, self.channels)
        return functional.instance_norm(x, self.weight, self.bias, eps=self.eps)


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


def _eps(layer: str, eps: Any) -> float:
    return bounded(layer, "eps", eps, least=0)


def _last_lengths(layer: str, shape: Any) -> tuple[int, ...]:
    """The lengths of the last axes, of which there is at least one."""
    if not (lengths := integers_of(layer, "shape", shape)):
        raise ArgumentError(f"{layer}: shape has the length of one axis or more, not {shape!r}")
    for length in lengths:
        sizes(layer, shape=length)
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
