"""Complex operands: which operations reject them and why, conversion, and replacements of operations.

Operations with the letter C in the table accept complex operands. All others reject them here, above the contract, with
a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from backburn.base.dtypes import ComplexDType, DType
from backburn.base.errors import DTypeError, Unsupported
from backburn.ops.table import OPERATIONS
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import CLASSES, flat

if TYPE_CHECKING:
    from backburn.backend.contract import AnyBackend

#: What to write where a real number is needed.
PARTS = "a complex number is not real: take bb.real(x), bb.imag(x) or bb.abs(x)"
_ORDER = "complex numbers have no order: compare bb.abs(x), or bb.real(x) and bb.imag(x)"
_ROUNDING = "complex numbers are not rounded: apply it to bb.real(x) and bb.imag(x)"
_BITS = "complex numbers have no bits to compute with"
_OTHER = "it is defined for real numbers only, such as bb.real(x), bb.imag(x) and bb.abs(x)"

#: Why an operation rejects complex operands, if not for the general reason.
REASONS: dict[str, str] = {
    **dict.fromkeys((
        "less", "less_equal", "greater", "greater_equal", "maximum", "minimum", "fmax", "fmin", "clip", "max", "min",
        "max_abs", "argmax", "argmin", "max_with_indices", "min_with_indices", "cummax", "cummin", "sort", "argsort",
        "topk", "kthvalue", "searchsorted", "median", "quantile", "sign", "signbit", "copysign", "nextafter", "relu",
    ), _ORDER),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "frac", "floor_divide", "remainder", "fmod"), _ROUNDING),
    **dict.fromkeys((name for name in OPERATIONS if name.startswith("bitwise_")), _BITS),
    **dict.fromkeys(("quantize", "quantize_between", "fake_quantize"), "no scheme holds complex numbers"),
    **dict.fromkeys(
        ("sgd_step", "adam_step", "sgd_steps", "adam_steps"),
        "they update real numbers: optimizers pass both parts of a complex parameter",
    ),
}  # fmt: skip


def closed(name: str, operands: Sequence[Any]) -> DTypeError:
    """The error for complex operands of an operation that rejects them."""
    return DTypeError(f"{name}: takes no complex tensors: {REASONS.get(name, _OTHER)}. Operands: {describe(operands)}")


def check_real(name: str, operands: Sequence[Any]) -> None:
    """Raise for complex operands of an operation that rejects them."""
    if any(x.__class__ is CLASSES["complex"] for x in flat(operands)):
        raise closed(name, operands)


def check_supported(name: str, backend: AnyBackend, dtype: DType) -> None:
    """Raise for a backend without tensors of a complex dtype."""
    if not backend.capabilities.supports(dtype, "storage"):
        raise Unsupported(f"{name}: the backend {backend.spec} has no {dtype} tensors; use a pair of real ones")


def check_created(name: str, backend: AnyBackend, dtype: DType) -> None:
    """Raise for an operation that creates no complex tensors, and for a backend without them."""
    if "C" not in OPERATIONS[name].kinds:
        raise DTypeError(f"{name}: makes no complex tensors: {REASONS.get(name, _OTHER)}")
    check_supported(name, backend, dtype)


def converted(x: Any, dtype: DType) -> Any:
    """A real tensor in a complex dtype. Raises for the reverse, which would lose the imaginary part."""
    from backburn.tensor.core.dispatch import call, cast

    if not isinstance(dtype, ComplexDType):
        part = "" if dtype.is_floating else f".astype('{dtype}')"
        raise DTypeError(
            f"astype: {dtype} holds no complex numbers: bb.real(x){part}, bb.imag(x){part} and bb.abs(x){part} are "
            f"real. Operand: {describe((x,))}"
        )
    if x._dtype.kind == "quantized":
        raise DTypeError(f"astype: dequantize it first. Operand: {describe((x,))}")
    check_supported("astype", x._backend, dtype)
    return call("complex", cast(x, dtype.part), 0.0)


def _call(name: str) -> Callable[[Any], Any]:
    def instead(x: Any) -> Any:
        from backburn.tensor.core.dispatch import call

        return call(name, x)

    return instead


def _turned(x: Any, name: str, up: bool) -> Any:
    """An operation applied to ``i x`` (``up``) or ``-i x``, and its result rotated back; zeros keep their signs."""
    from backburn.tensor.core.dispatch import call

    for operation in (name, ""):
        real, imag = call("real", x), call("imag", x)
        x = call("complex", call("neg", imag), real) if up else call("complex", imag, call("neg", real))
        x, up = (call(operation, x) if operation else x), not up
    return x


def _sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))`` with the exponential that does not overflow, which keeps small results accurate."""
    from backburn.tensor.core.dispatch import call

    falling = call("less", call("real", x), 0.0)
    power = call("exp", call("where", falling, x, call("neg", x)))
    return call("div", call("where", falling, power, 1.0), call("add", power, 1.0))


def by_parts(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of complex tensors that applies one of real tensors to the real and to the imaginary part."""

    def instead(x: Any) -> Any:
        from backburn.tensor.core.dispatch import call

        return call("complex", function(call("real", x)), function(call("imag", x)))

    return instead


#: Replacements of unary operations for complex tensors.
INSTEAD: dict[str, Callable[[Any], Any]] = {
    "abs": _call("modulus"),
    "sign": _call("phase"),
    "round": by_parts(_call("round")),
    "atan": lambda x: _turned(x, "atanh", up=True),
    "asinh": lambda x: _turned(x, "asin", up=False),
    "tanh": lambda x: _turned(x, "tan", up=False),
    "sigmoid": _sigmoid,
}
