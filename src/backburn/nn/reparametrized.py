"""Layers with a weight that is computed from other parameters: weight and spectral normalization."""

from __future__ import annotations

from functools import partial
from typing import Any

from backburn.base.errors import ArgumentError, GraphError, hint_for
from backburn.nn import functional, init
from backburn.nn.conv import Convolution
from backburn.nn.linear import Bilinear, Embedding, EmbeddingBag, Linear
from backburn.nn.module import Module, holding, parameter
from backburn.nn.normalization import lowered
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axis_of, bounded, integer
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.linalg.products import matmul, vecdot
from backburn.tensor.reduce import vector_norm
from backburn.tensor.shape import moveaxis

#: The number of initial power iterations of a spectral norm.
FIRST = 15


class Reparametrized(Module):
    """The base class of modules that wrap a layer and compute one of its parameters.

    ``layer`` is the layer without its parameter ``name``.
    """

    layer: Module

    def _take(self, layer: Module, name: str) -> FloatTensor:
        """Return the parameter ``name`` of a layer; :attr:`layer` becomes a copy without it."""
        kind = type(self).__name__
        if not isinstance(layer, Module):
            raise ArgumentError(f"{kind}: takes a layer, such as {kind}(Linear(3, 2)), not {type(layer).__name__}")
        weight: Any = vars(layer).get(name)
        if not is_tensor(weight) or not weight.dtype.has_gradient:
            known = [path for path, _ in layer.named_parameters() if "." not in path]
            raise ArgumentError(f"{kind}: {type(layer).__name__} has no parameter {name!r}. {hint_for(name, known)}")
        self.name = name
        self.layer = holding(layer, **{name: None})
        return weight

    def _axis(self, layer: Module, weight: FloatTensor, axis: Any) -> int | None:
        """The axis whose indices are normalized separately, counted from 0; None if there is a single norm."""
        kind = type(self).__name__
        if axis == "outputs":
            if isinstance(layer, Convolution):
                return int(layer.TRANSPOSED)
            if isinstance(layer, (Linear, Bilinear, Embedding, EmbeddingBag)):
                return 0
            raise ArgumentError(
                f"{kind}: the output axis of {self.name!r} is not known for a {type(layer).__name__}; give it, as in "
                f"{kind}(layer, axis=0). Parameter: {describe((weight,))}"
            )
        return None if axis is None else axis_of(kind, weight, axis)

    @property
    def weight(self) -> FloatTensor:
        """The parameter of the layer, computed from those of this module."""
        raise NotImplementedError

    def plain(self) -> Module:
        """The layer with the current :attr:`weight` as its parameter."""
        value = self.weight.detach()
        return holding(self.layer, **{self.name: parameter(value) if self.weight.is_tracked else value})

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The result of the layer."""
        return holding(self.layer, **{self.name: self.weight}).forward(*inputs, **options)


class WeightNorm(Reparametrized):
    """A layer whose weight is ``magnitude * direction / norm(direction)`` (Salimans and Kingma, 2016).

    ``magnitude`` and ``direction`` are parameters, whose initial values give the weight of ``layer``. There is one norm
    for each index of ``axis``: by default, for each output of a :class:`Linear` layer or a convolution, and for each
    row of an :class:`Embedding`; with ``axis=None`` there is a single norm. ``magnitude`` has the shape of the weight,
    with length 1 along all other axes. ``name`` is the layer's attribute to compute.

    :attr:`weight` is the computed weight, and ``plain()`` returns an ordinary layer with it. ``layer`` itself is
    unchanged. Raises :class:`ArgumentError` for a layer without such a parameter, and for other layers if ``axis`` is
    not given; :class:`AxisError` for an axis that does not exist.

        >>> import backburn as bb
        >>> layer = WeightNorm(bb.nn.Linear(3, 2))
        >>> [(path, x.shape) for path, x in layer.named_parameters()]
        [('layer.bias', (2,)), ('magnitude', (2, 1)), ('direction', (2, 3))]
        >>> layer(bb.ones((5, 3))).shape, layer.plain().weight.shape
        ((5, 2), (2, 3))
    """

    magnitude: FloatTensor
    direction: FloatTensor

    def __init__(self, layer: Module, name: str = "weight", axis: int | str | None = "outputs") -> None:
        weight = self._take(layer, name)
        kept = self._axis(layer, weight, axis)
        self._over = tuple(a for a in range(weight.ndim) if a != kept)
        size = vector_norm(weight.detach(), axis=self._over, keepdims=True)
        self.magnitude = size.require_grad() if weight.is_require_grad else size
        self.direction = weight

    @property
    def weight(self) -> FloatTensor:
        """``magnitude * direction / norm(direction)``; 0 where the direction is."""
        return functional.normalize(self.direction, axis=self._over) * self.magnitude


class SpectralNorm(Reparametrized):
    """A layer whose weight is divided by its largest singular value (Miyato et al., "Spectral normalization", 2018).

    For a weight with more than two axes, that is the singular value of the matrix with a row for each index of ``axis``
    (see :class:`WeightNorm`; the choice of ``axis`` matters only there); a weight with a single axis is divided by its
    norm. It is estimated by power iteration (algorithm 1): each call in training mode runs ``n_power_iterations``,
    starting from the last singular vectors, the buffers ``u`` and ``v``. No gradient flows through the vectors, and
    they do not change in evaluation mode.

    ``original`` is the parameter, :attr:`weight` the computed weight, and ``plain()`` returns an ordinary layer with
    it. ``layer`` itself is unchanged. Raises the errors of :class:`WeightNorm`, and :class:`GraphError` in training
    mode inside ``vmap`` over the weight, where each example would have its own vectors.

        >>> import backburn as bb
        >>> layer = SpectralNorm(bb.nn.Linear(3, 2))
        >>> for _ in range(20):
        ...     y = layer(bb.ones((5, 3)))
        >>> round(bb.linalg.svdvals(layer.weight)[0].item(), 4)
        1.0
    """

    original: FloatTensor
    u: FloatTensor  # None if the weight has one axis
    v: FloatTensor

    def __init__(
        self,
        layer: Module,
        name: str = "weight",
        axis: int | str = "outputs",
        n_power_iterations: int = 1,
        eps: float = 1e-12,
    ) -> None:
        weight = self._take(layer, name)
        if axis is None:
            raise ArgumentError("SpectralNorm: axis is a number or 'outputs', not None: rows are needed")
        self.axis = self._axis(layer, weight, axis) or 0 if weight.ndim > 1 else 0
        self.n_power_iterations = integer("SpectralNorm", "n_power_iterations", n_power_iterations, least=1)
        self.eps = bounded("SpectralNorm", "eps", eps, least=0)
        self.original = weight
        u = v = None
        if weight.ndim > 1:
            rows, columns = self._matrix(weight).shape
            like = partial(init.normal, dtype=weight.dtype, backend=weight.backend)
            u, v = (functional.normalize(like((n,)), eps=self.eps) for n in (rows, columns))
        self.register_buffer("u", u)
        self.register_buffer("v", v)
        if weight.ndim > 1:
            self._iterate(FIRST)

    @property
    def _iterates(self) -> bool:
        found: FloatTensor | None = self.u
        return found is not None

    def _matrix(self, weight: Tensor) -> Tensor:
        rows = moveaxis(weight, self.axis, 0)
        return rows.reshape((rows.shape[0], -1))

    def _iterate(self, times: int) -> None:
        """Continue the power iteration, without gradients."""
        try:
            matrix = self._matrix(lowered(self.original, self.u.backend))
            u, v = self.u, self.v
            for _ in range(times):
                u = functional.normalize(matmul(matrix, v), eps=self.eps)
                v = functional.normalize(matmul(u, matrix), eps=self.eps)
            self.u, self.v = u, v
        except GraphError as error:
            raise GraphError(
                "SpectralNorm: in training mode, the singular vectors differ between the examples of vmap over the "
                "weight, but the model keeps only one pair. Use that one with model.eval()"
            ) from error

    @property
    def weight(self) -> FloatTensor:
        """The parameter divided by the singular value that ``u`` and ``v`` give."""
        if not self._iterates:
            return functional.normalize(self.original, axis=None, eps=self.eps)
        return self.original / vecdot(self.u, matmul(self._matrix(self.original), self.v))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The result of the layer; training mode first refines the singular vectors."""
        if self.training and self._iterates:
            self._iterate(self.n_power_iterations)
        return super().forward(*inputs, **options)
