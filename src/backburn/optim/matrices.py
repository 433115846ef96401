"""Optimizers that treat parameters as matrices: Adafactor, by rows and columns, and Muon, by singular vectors."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod, sqrt
from typing import Any, ClassVar

from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.base.mutable_trees import Leaf
from backburn.optim.complex_parameters import shape_of_steps
from backburn.optim.formulas import PerParameter, length, mean
from backburn.optim.optimizer import Rate, StepInputs
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import bounded, integer, number, one_of
from backburn.tensor.inspection import finfo

Shape = tuple[int, ...]


class Adafactor(PerParameter):
    """Adam without momentum, with factored second moments (Shazeer and Stern, "Adafactor", 2018).

    The mean squares of the gradients are kept for the rows and the columns of the last two axes, each with the decay
    rate ``1 - n**beta2_decay`` in step ``n``. The second moment ``v`` of an element is the product of those of its row
    and its column, divided by the mean of all rows (algorithm 4). For parameters with fewer than two axes, ``v`` itself
    is kept; the real and the imaginary part of a complex one are two matrices. With ``rms(x)`` the root mean square,
    ``eps1, eps2 = eps`` and ``u = g / sqrt(max(v, eps1**2))``, a step first multiplies the parameter ``x`` by ``1 -
    lr * weight_decay``, and then subtracts ``min(lr, 1 / sqrt(n)) * max(rms(x), eps2) * u / max(rms(u) / d, 1)``:
    ``lr`` is relative to the size of the parameter.

    If ``eps1`` is None, it is the eps of the parameter's dtype, or of float32 for 16-bit floats (the paper adds 1e-30
    to the squares instead). Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([[3.0, -2.0], [1.0, 4.0]]).require_grad()}
        >>> optimizer = Adafactor(lr=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> print(model["w"].numpy().round(2))
        [[ 1.06 -1.08]
         [ 0.43  2.4 ]]
        >>> [(name, x.shape) for name, x in optimizer.state_tensors().items()]
        [('w.rows', (2, 1)), ('w.columns', (1, 2))]
    """

    remembers = ("rows", "columns")
    _corrects = True
    _numbers: ClassVar[Mapping[str, float]] = {"weight_decay": inf}

    def __init__(
        self,
        lr: Rate = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(lr)
        self.beta2_decay = beta2_decay
        self.eps = eps
        self.d = d
        self.weight_decay = weight_decay

    def _checked(self, name: str, value: Any) -> Any:
        if name == "beta2_decay":
            return bounded("Adafactor", name, value, most=0, above=-inf)
        if name == "d":
            return bounded("Adafactor", name, value, least=1, below=inf)
        if name == "eps":
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise ArgumentError(f"Adafactor: eps is two numbers, the first of which may be None, not {value!r}")
            first, second = value
            floor = None if first is None else bounded("Adafactor", "eps[0]", first, least=0, below=inf)
            return floor, bounded("Adafactor", "eps[1]", second, least=0, below=inf)
        return super()._checked(name, value)

    def _shapes(self, leaf: Leaf) -> list[Shape]:
        shape = shape_of_steps(leaf.value)
        if leaf.value.ndim < 2:
            return [(), shape]
        return [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])]

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        return min(lr, 1.0 / sqrt(step)), 1.0 - step**self.beta2_decay, 1.0 - lr * self.weight_decay

    def _update_one(self, k: Any, inputs: StepInputs, numbers: list[Any], x: Any, g: Any, *state: Any) -> Any:
        (rate, beta, shrink), (rows, columns), (least, smallest) = numbers, state, self.eps
        if least is None:
            least = finfo(k.dtype(x)).eps
        size, axis = k.maximum(_rms(k, x), smallest), len(x.shape) - 1
        if not rows.shape:
            update, columns = k.fuse(_by_square, g, columns, beta, least * least)
        else:
            squares = k.square(g)
            rows = _decayed_mean(k, rows, k.mean(squares, (axis,), True), beta)
            columns = _decayed_mean(k, columns, k.mean(squares, (axis - 1,), True), beta)
            ratio = k.div(rows, k.maximum(k.mean(rows, (axis - 1,), True), least))
            update = k.div(g, k.sqrt(k.maximum(k.mul(ratio, columns), least * least)))
        rate = k.div(k.mul(size, rate), k.maximum(k.div(_rms(k, update), self.d), 1.0))
        return k.fuse(_stepped, x, update, shrink, rate), rows, columns


class Muon(PerParameter):
    """Orthogonalized momentum, for matrices (Jordan et al., "Muon: an optimizer for hidden layers", 2024).

    The mean of the gradients becomes ``m = momentum * m + (1 - momentum) * g``. It is orthogonalized, or with
    ``nesterov`` the mean ``momentum * m + (1 - momentum) * g`` is: divided by its Frobenius norm (or ``eps``, if that
    is larger), its singular values are driven near 1 by ``ns_steps`` Newton-Schulz iterations with the polynomial ``a
    * s + b * s**3 + c * s**5``, whose coefficients are ``ns_coefficients``. A step multiplies the parameter ``x`` of
    shape (outputs, inputs) by ``1 - lr * weight_decay``, and then subtracts the orthogonalized matrix times ``lr *
    sqrt(max(1, outputs / inputs))``. With ``adjust_lr_fn="match_rms_adamw"`` the factor is ``lr * 0.2 *
    sqrt(max(inputs, outputs))``, for which the learning rates of :class:`AdamW` are suitable (Liu et al., "Muon is
    scalable for LLM training", 2025).

    Steps are computed in the dtype of the parameters, and in float32 for 16-bit floats. Muon is meant for the matrices
    of hidden layers; use another optimizer for biases, embeddings and the last layer, with :class:`Groups`.

    Raises :class:`ArgumentError` for options out of range, and at a step :class:`ShapeError` for parameters that are
    not matrices, and :class:`DTypeError` for complex ones.

        >>> import backburn as bb
        >>> from backburn.optim import AdamW, Groups
        >>> model = bb.nn.Sequential(bb.nn.Linear(4, 8), bb.nn.Tanh(), bb.nn.Linear(8, 1))
        >>> optimizer = Groups({"0.weight": Muon(0.02), "*": AdamW()})
        >>> before = model[0].weight
        >>> optimizer.step(model, model(bb.ones((2, 4))).sum().backward())
        >>> bool((model[0].weight != before).all())
        True
    """

    remembers = ("m",)
    _numbers: ClassVar[Mapping[str, float]] = {"weight_decay": inf, "momentum": 1.0, "eps": inf}
    _flags = ("nesterov",)

    def __init__(
        self,
        lr: Rate = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        super().__init__(lr)
        self.weight_decay = weight_decay
        self.momentum = momentum
        self.nesterov = nesterov
        self.ns_coefficients = ns_coefficients
        self.eps = eps
        self.ns_steps = ns_steps
        self.adjust_lr_fn = adjust_lr_fn

    def _checked(self, name: str, value: Any) -> Any:
        if name == "ns_steps":
            return integer("Muon", name, value, least=0)
        if name == "adjust_lr_fn":
            return one_of("Muon", name, "original" if value is None else value, ("original", "match_rms_adamw"))
        if name == "ns_coefficients":
            if not isinstance(value, (tuple, list)) or len(value) != 3:
                raise ArgumentError(f"Muon: ns_coefficients are three numbers, not {value!r}")
            return tuple(float(number("Muon", f"ns_coefficients[{i}]", x)) for i, x in enumerate(value))
        return super()._checked(name, value)

    def _shapes(self, leaf: Leaf) -> list[Shape]:
        x, shape = leaf.value, leaf.value.shape
        if x.dtype.kind == "complex":
            raise DTypeError(
                f"step: Muon is for real matrices, and {leaf.path!r} is {describe((x,))}: use another optimizer for "
                f'it, as in Groups({{{leaf.path!r}: AdamW(), "*": Muon()}})'
            )
        if len(shape) != 2:
            raise ShapeError(
                f"step: Muon is for matrices, and {leaf.path!r} has shape {list(shape)}: use another optimizer for it, "
                f'as in Groups({{"*.weight": Muon(), "*": AdamW()}})'
            )
        return [shape]

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        return lr, 1.0 - lr * self.weight_decay

    def _update_one(self, k: Any, inputs: StepInputs, numbers: list[Any], x: Any, g: Any, *state: Any) -> Any:
        rate, shrink = numbers
        m, update = k.fuse(_momentum, *state, g, self.momentum, self.nesterov)
        update = _orthogonal(k, update, self.ns_coefficients, self.ns_steps, self.eps)
        return k.fuse(_stepped, x, update, shrink, k.mul(rate, self._scale(x.shape))), m

    def _scale(self, shape: Shape) -> float:
        """The factor of the rate."""
        outputs, inputs = shape
        if self.adjust_lr_fn == "original":
            return sqrt(max(1.0, outputs / max(inputs, 1)))
        return 0.2 * sqrt(max(inputs, outputs))


# ---- formulas ----


def _by_square(k: Any, g: Any, v: Any, beta: Any, floor: float) -> tuple[Any, ...]:
    v = _decayed_mean(k, v, k.square(g), beta)
    return k.div(g, k.sqrt(k.maximum(v, floor))), v


def _stepped(k: Any, x: Any, update: Any, shrink: Any, rate: Any) -> Any:
    return k.sub(k.mul(x, shrink), k.mul(update, rate))


def _decayed_mean(k: Any, before: Any, x: Any, beta: Any) -> Any:
    """A running mean whose decay is a tensor."""
    return k.add(x, k.mul(k.sub(before, x), beta))


def _rms(k: Any, x: Any) -> Any:
    """The root mean square of all elements; 0 if there are none."""
    return k.div(length(k, x), sqrt(max(prod(x.shape), 1)))


def _momentum(k: Any, before: Any, g: Any, momentum: float, nesterov: bool) -> tuple[Any, ...]:
    m = mean(k, before, g, momentum)
    return m, mean(k, m, g, momentum) if nesterov else m


def _orthogonal(k: Any, x: Any, coefficients: tuple[float, float, float], steps: int, eps: float) -> Any:
    """``x`` with singular values near 1: each step is an odd polynomial of them."""
    a, b, c = coefficients
    x = k.div(x, k.maximum(length(k, x), eps))
    tall = x.shape[0] > x.shape[1]
    for _ in range(steps):
        turned = k.permute_dims(x, (1, 0))
        gram = k.matmul(turned, x) if tall else k.matmul(x, turned)  # the smaller Gram matrix
        factor = k.add(k.mul(gram, b), k.mul(k.matmul(gram, gram), c))
        x = k.add(k.mul(x, a), k.matmul(x, factor) if tall else k.matmul(factor, x))
    return x
