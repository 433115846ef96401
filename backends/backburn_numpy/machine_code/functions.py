"""Kernels on vectors: each in the order of operations of the C function of its name, hence bitwise equal."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi
from struct import pack, unpack
from typing import TypeAlias

from backburn_numpy.machine_code.vectors import (
    AT_LEAST,
    GREATER,
    IS_EQUAL,
    LESS,
    LESS_EQUAL,
    NOT_EQUAL,
    UNORDERED,
    Program,
    Vector,
)

Function: TypeAlias = Callable[..., Vector]


def horner(p: Program, x: Vector, first: Vector | float, *others: float) -> Vector:
    """A polynomial by multiply-adds."""
    found = first if isinstance(first, Vector) else p.constant(first)
    for number in others:
        found = p.fma(found, x, number)
    return found


def single(x: float) -> float:
    """A number rounded to a float32."""
    found: float = unpack("<f", pack("<f", x))[0]
    return found


#: Adding it rounds a number to an integer, which the low bits hold.
SHIFT, SHIFT_OF_DOUBLE = 1.5 * 2.0**23, 1.5 * 2.0**52


def exp_terms(p: Program, x: Vector, added: Callable[[Vector], Vector] = lambda x: x) -> tuple[Vector, Vector]:
    """``exp(x + rest) / 2**n - 1`` and ``n + SHIFT``; ``added`` adds the rest."""
    shifted = p.fma(added(x), 1.44269504088896341, SHIFT)
    n = shifted - SHIFT
    r = added(p.fma(n, 2.12194440e-4, p.fnma(n, 0.693359375, x)))
    q = horner(
        p, r, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
    )
    return p.fma(q * r, r, r), shifted


def power_of_2(p: Program, n: Vector) -> Vector:
    bias, digits = (127, 23) if p.size == 4 else (1023, 52)
    return p.shifted(p.make("int_add", n, p.bits(bias)), "left", digits)


def times_power_of_2(p: Program, x: Vector, shifted: Vector) -> Vector:
    """``x * 2**n`` for ``n + SHIFT``, by two factors where no instruction does so: one may be out of range."""
    if p.bytes == 64:
        return p.make("scale", x, shifted - SHIFT)
    whole = p.make("int_sub", shifted, p.constant(SHIFT))
    half = p.shifted(whole, "right", 1)
    return x * power_of_2(p, half) * power_of_2(p, p.make("int_sub", whole, half))


def exp_of_double(p: Program, x: Vector) -> Vector:
    x = p.maximum(-746.0, p.minimum(710.0, x))
    shifted = p.fma(x, 1.4426950408889634, SHIFT_OF_DOUBLE)
    n = shifted - SHIFT_OF_DOUBLE
    r = p.fnma(n, 1.9082149292705877e-10, p.fnma(n, float.fromhex("0x1.62e42feep-1"), x))
    inverses = (479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2)
    q = horner(p, r, 1 / 6227020800, *(1 / n for n in inverses))
    found = p.fma(q * r, r, r) + 1.0
    if p.bytes == 64:
        return p.make("scale", found, n)
    whole = p.make("int_sub", shifted, p.constant(SHIFT_OF_DOUBLE))
    half = p.shifted(p.make("int_add", whole, p.bits(2048)), "right_unsigned", 1)
    half = p.make("int_sub", half, p.bits(1024))
    return found * power_of_2(p, half) * power_of_2(p, p.make("int_sub", whole, half))


def exp(p: Program, x: Vector, added: Callable[[Vector], Vector] = lambda x: x, is_negative: bool = False) -> Vector:
    if p.size == 8:
        return exp_of_double(p, x)
    x = p.maximum(-104.0, x if is_negative else p.minimum(89.0, x))
    terms, shifted = exp_terms(p, x, added)
    return times_power_of_2(p, terms + 1.0, shifted)


def expm1(p: Program, x: Vector) -> Vector:
    x = p.maximum(-18.0, p.minimum(89.0, x))
    rest, shifted = exp_terms(p, x)
    whole = p.make("int_sub", shifted, p.constant(SHIFT))
    least = p.select(p.compare(p.make("to_float", whole), 126.0, LESS), whole, p.bits(126))
    below = 1.0 - power_of_2(p, p.make("int_sub", p.bits(0), least))
    found = times_power_of_2(p, rest + below, shifted)
    return p.select(p.compare(x, 0.0, IS_EQUAL), x, found)


def log_terms(p: Program, z: Vector) -> Vector:
    return z * horner(
        p, z, 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )  # fmt: skip


def log_of_double(p: Program, x: Vector) -> Vector:
    small = p.compare(x, 2.0**-1022, LESS)
    bits = p.select(small, x * 2.0**52, x)
    least, digits = 0x3FE6A09E667F3BCD, (1 << 52) - 1
    over = p.make("int_add", p.make("int_sub", bits, p.bits(least)), p.bits(1023 << 52))
    n = p.make("or", p.shifted(over, "right_unsigned", 52), p.bits(0x4330000000000000)) - (2.0**52 + 1023.0)
    z = p.make("int_add", p.both_bits(over, p.bits(digits)), p.bits(least)) - 1.0
    s = z / (2.0 + z)
    square, half = s * s, z * 0.5 * z
    q = horner(p, square, 2 / 21, *(2 / n for n in (19, 17, 15, 13, 11, 9, 7, 5, 3)))
    n = p.select(small, n - 52.0, n)
    rest = p.fma(n, 1.9082149292705877e-10, s * p.fma(q, square, half))
    result = p.fma(n, float.fromhex("0x1.62e42feep-1"), p.negative((half - rest) - z))
    bound = p.select(p.compare(x, 0.0, IS_EQUAL), -inf, nan)
    return p.select(p.compare(x, 0.0, GREATER), p.select(p.compare(x, inf, LESS), result, x), bound)


def log_of_positive(p: Program, u: Vector) -> Vector:
    small = p.compare(u, 2.0**-126, LESS)
    bits = p.select(small, u * 2.0**23, u)
    whole = p.shifted(p.make("int_sub", bits, p.bits(0x3F3504F3)), "right", 23)
    z = p.make("int_sub", bits, p.shifted(whole, "left", 23)) - 1.0
    square = z * z
    n = p.make("to_float", p.select(small, p.make("int_sub", whole, p.bits(23)), whole))
    low = p.fnma(n, 2.12194440e-4, log_terms(p, z) * square)
    result = p.fma(n, 0.693359375, p.fnma(square, 0.5, low) + z)
    return p.select(p.compare(u, 0.0, IS_EQUAL), -inf, p.select(p.compare(u, inf, IS_EQUAL), u, result))


def log(p: Program, x: Vector) -> Vector:
    if p.size == 8:
        return log_of_double(p, x)
    return p.select(p.compare(x, 0.0, AT_LEAST), log_of_positive(p, x), nan)


def log1p(p: Program, x: Vector) -> Vector:
    u = 1.0 + x
    lost = p.select(p.compare(x, 1.0, GREATER), 1.0 - (u - x), x - (u - 1.0))
    result = log_of_positive(p, u) if p.size == 4 else log_of_double(p, u)
    exact = result + p.select(p.compare(p.absolute(result), inf, LESS), lost / u, 0.0)
    near = p.compare(p.absolute(x), 2.0**-25 if p.size == 4 else 2.0**-54, LESS)
    if p.size == 8:
        return p.select(near, x, exact)
    return p.select(near, x, p.select(p.compare(x, -1.0, AT_LEAST), exact, nan))


def log_of_one_plus(p: Program, e: Vector) -> Vector:
    u = 1.0 + e
    lost = e - (u - 1.0)
    above = p.compare(u, 1.41421356, GREATER)
    z = p.select(above, 0.5 * u, u) - 1.0
    square = z * z
    result = p.fma(log_terms(p, z), square, square * -0.5) + z + lost / u
    return p.select(above, (result - 2.12194440e-4) + 0.693359375, result)


def decayed(p: Program, x: Vector) -> Vector:
    """``exp(-|x|)``."""
    return exp(p, p.make("or", x, p.constant(-0.0)), is_negative=True)


def sigmoid(p: Program, x: Vector) -> Vector:
    e = decayed(p, x)
    above = 1.0 / (1.0 + e)
    return p.select(p.compare(x, 0.0, LESS), e * above, above)


def sigmoid_slope(p: Program, grad: Vector, x: Vector) -> Vector:
    e = decayed(p, x)
    above = 1.0 / (1.0 + e)
    return e * above * above * grad


def tail(p: Program, x: Vector) -> Vector:
    e = decayed(p, x)
    if p.size == 4:
        return log_of_one_plus(p, e)
    s = e / (2.0 + e)
    z = s * s
    q = horner(p, z, 1 / 33, *(1 / n for n in range(31, 1, -2)))
    return 2.0 * p.fma(q * z, s, s)


def softplus(p: Program, x: Vector) -> Vector:
    return p.select(p.compare(x, 0.0, LESS), 0.0, x) + tail(p, x)


def log_sigmoid(p: Program, x: Vector) -> Vector:
    return p.select(p.compare(x, 0.0, GREATER), 0.0, x) - tail(p, x)


def silu(p: Program, x: Vector) -> Vector:
    return x * sigmoid(p, x)


def slope_of(p: Program, u: Vector, slope: Vector, x: Vector) -> Vector:
    e = decayed(p, u)
    above = 1.0 / (1.0 + e)
    below = e * above
    return p.select(p.compare(x, 0.0, GREATER), p.fma(below, slope, 1.0) * above, p.fma(above, slope, 1.0) * below)


def silu_backward(p: Program, grad: Vector, x: Vector) -> Vector:
    return slope_of(p, x, x, x) * grad


def tanh(p: Program, x: Vector) -> Vector:
    y = p.absolute(x)
    z = x * x
    q = horner(p, z, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    near = p.fma(q * z, y, y)
    far = 1.0 - 2.0 / (exp(p, 2.0 * y) + 1.0)
    found = p.select(p.compare(y, 0.625, LESS), near, far)
    return p.with_sign(p.absolute(found), x)


def tanh_slope(p: Program, grad: Vector, x: Vector, y: Vector) -> Vector:
    above = 1.0 + p.absolute(y)
    return exp(p, -2.0 * p.absolute(x)) * (above * above) * grad


def half_exp(p: Program, y: Vector) -> Vector:
    return exp(p, y - 0.693359375, lambda x: x + 2.12194440e-4)


def cosh(p: Program, x: Vector) -> Vector:
    e = half_exp(p, p.absolute(x))
    return e + 0.25 / e


def sinh(p: Program, x: Vector) -> Vector:
    y, z = p.absolute(x), x * x
    e = half_exp(p, y)
    q = horner(p, z, *(single(1.0 / n) for n in (39916800, 362880, 5040, 120, 6)))
    found = p.select(p.compare(y, 1.0, LESS), p.fma(q * z, y, y), e - 0.25 / e)
    return p.with_sign(p.absolute(found), x)


def arctan_terms(p: Program, z: Vector) -> Vector:
    if p.size == 8:
        return horner(
            p, z, 1.322518965712377e-05, -0.0001521618818176523, 0.0008313259524050171, -0.002884928352038416,
            0.007196518930527816, -0.013900577214659716, 0.021984865869996387, -0.02990386384226365, 0.0366419110426766,
            -0.042191787902766904, 0.047223220824395416, -0.05253518490262242, 0.058805277948088173,
            -0.06666404053158394, 0.07692279838596802, -0.0909090700291556, 0.1111111100702069, -0.14285714282574868,
            0.19999999999951454, -0.3333333333333307,
        )  # fmt: skip
    return horner(
        p, z, -0.00179362029, 0.0109145986, -0.0311778318, 0.0579575785, -0.0840344951, 0.109521851, -0.142642409,
        0.199985489, -0.333332986,
    )  # fmt: skip


def arctan2(p: Program, y: Vector, x: Vector) -> Vector:
    tall, wide = p.absolute(y), p.absolute(x)
    steep = p.compare(tall, wide, GREATER)
    low, high = p.select(steep, wide, tall), p.select(steep, tall, wide)
    of_equal = p.select(p.compare(high, 0.0, NOT_EQUAL), 1.0, 0.0)
    a = p.select(p.compare(low, high, NOT_EQUAL), low / high, of_equal)
    z = a * a
    near = p.fma(arctan_terms(p, z) * z, a, a)
    above = p.select(steep, pi / 2 - near, near)
    found = p.select(p.compare(p.with_sign(p.constant(1.0), x), 0.0, LESS), pi - above, above)
    return p.with_sign(p.absolute(found), y)


def arctan(p: Program, x: Vector) -> Vector:
    return arctan2(p, x, p.constant(1.0))


def erf(p: Program, x: Vector) -> Vector:
    z = p.minimum(15.3664, x * x)
    top = horner(p, z, 6.70396996, 131.2509, 861.146179, 3472.75146)
    bottom = horner(p, z, z + 72.9091263, 482.85965, 3077.64575)
    return tanh(p, x * (top / bottom))


def gauss(p: Program, y: Vector, scale: float) -> Vector:
    leading = p.both_bits(y, p.bits(-(1 << 12)))
    rest = y - leading
    if scale == -1.0:
        return exp(p, p.negative(leading * leading), lambda x: x - rest * (y + leading), is_negative=True)
    return exp(p, scale * (leading * leading), lambda x: p.fma(rest * (y + leading), scale, x), is_negative=True)


def erfc(p: Program, x: Vector) -> Vector:
    y = p.minimum(10.25, p.absolute(x))
    top = horner(p, y, 0.128386915, 1.41132736, 5.84634495, 12.4719591, 12.9622545, -3.84186514e-08)
    bottom = horner(p, y, y + 6.60108566, 20.8843956, 36.9663734, 35.7516479, 14.8714314)
    above = gauss(p, y, -1.0) * ((top / bottom + 1.0) / p.fma(y, 2.0, 1.0))
    return p.select(p.compare(x, 0.0, LESS), 2.0 - above, above)


def mass_above(p: Program, y: Vector) -> tuple[Vector, Vector]:
    density = gauss(p, y, -0.5)
    top = horner(p, y, 0.3989468369, 3.935827965, 17.74102709, 42.42109394, 48.37106885)
    bottom = horner(p, y, y + 9.866274741, 45.45579191, 116.392779, 162.0312867, 96.74213713)
    return top / bottom, density


def clipped(p: Program, x: Vector) -> Vector:
    return p.minimum(14.6, p.absolute(x))


def gelu(p: Program, x: Vector) -> Vector:
    y = clipped(p, x)
    ratio, density = mass_above(p, y)
    return p.fnma(ratio * density, y, p.select(p.compare(x, 0.0, LESS), 0.0, x))


def gelu_backward(p: Program, grad: Vector, x: Vector) -> Vector:
    y = clipped(p, x)
    ratio, density = mass_above(p, y)
    t = p.fma(ratio, density, p.negative(y * 0.39894228040143268 * density))
    return p.select(p.compare(x, 0.0, LESS), t, 1.0 - t) * grad


LINEAR, CUBIC = single(1.5957691216057308), single(0.07135481627159936)


def gelu_tanh(p: Program, x: Vector) -> Vector:
    y = near(p, x)  # beyond, exp is 0 for all, and the gradient computes the same
    return x * sigmoid(p, y * p.fma(y * y, CUBIC, LINEAR))


def near(p: Program, x: Vector) -> Vector:
    return p.maximum(-12.0, p.minimum(12.0, x))


def gelu_tanh_backward(p: Program, grad: Vector, x: Vector) -> Vector:
    x = near(p, x)
    square = x * x
    u = x * p.fma(square, CUBIC, LINEAR)
    return slope_of(p, u, x * p.fma(square, single(3.0 * CUBIC), LINEAR), x) * grad


def rounded(p: Program, x: Vector) -> Vector:
    y, whole = p.absolute(x), 2.0**23 if p.size == 4 else 2.0**52
    return p.select(p.compare(y, whole, LESS), p.with_sign(p.absolute((y + whole) - whole), x), x)


def floor(p: Program, x: Vector) -> Vector:
    near = rounded(p, x)
    return p.select(p.compare(near, x, GREATER), near - 1.0, near)


def sign(p: Program, x: Vector) -> Vector:
    rest = p.select(p.compare(x, 0.0, IS_EQUAL), 0.0, x)
    return p.select(p.compare(x, 0.0, GREATER), 1.0, p.select(p.compare(x, 0.0, LESS), -1.0, rest))


def maximum(p: Program, x: Vector, y: Vector) -> Vector:
    best = p.maximum(y, x)
    return best if y.is_known_number else p.select(kept(p, x, y), y, best)


def minimum(p: Program, x: Vector, y: Vector) -> Vector:
    best = p.minimum(y, x)
    return best if y.is_known_number else p.select(kept(p, x, y), y, best)


def kept(p: Program, x: Vector, y: Vector) -> Vector:
    """Where ``y`` is NaN and ``x`` is not: the case that the instruction gets wrong."""
    return p.compare(p.select(p.compare(x, x, UNORDERED), 0.0, y), 0.0, UNORDERED)


def clamp(p: Program, x: Vector, low: Vector, high: Vector) -> Vector:
    found = p.minimum(high, p.maximum(low, x))
    for bound in (high, low):
        if not bound.is_known_number:
            found = p.select(p.compare(bound, bound, UNORDERED), bound, found)
    return found


def huber(p: Program, x: Vector, targets: Vector, delta: Vector) -> Vector:
    difference, least = x - targets, p.negative(delta)
    above = p.select(p.compare(difference, least, LESS), least, difference)
    inside = p.select(p.compare(above, delta, GREATER), delta, above)
    return inside * p.fnma(inside, 0.5, difference)


def standardized(p: Program, x: Vector, origin: Vector, first: Vector, second: Vector, shift: Vector) -> Vector:
    d = x - origin
    return p.fma(d, first, p.fma(d, second, shift))


def standardize_gradient(
    p: Program, grad: Vector, scale: Vector, y: Vector, tilt: Vector, level: Vector,
    origin: Vector, first: Vector, second: Vector, shift: Vector,
) -> Vector:  # fmt: skip
    return first * p.fnma(y, tilt, p.fms(grad, scale, level))


def round_to_bfloat16(p: Program, x: Vector) -> Vector:
    odd = p.both_bits(p.shifted(x, "right_unsigned", 16), p.bits(1))
    moved = p.make("int_add", p.make("int_add", x, p.bits(0x7FFF)), odd)
    return p.select(p.compare(x, x, UNORDERED), x, p.both_bits(moved, p.bits(-0x10000)))


def _truth(how: int) -> Function:
    return lambda p, x, y: p.truth(p.compare(x, y, how))


#: By the name of a kernel; those of a number have ``_number`` after it. Operands are in the kernel's order.
FUNCTIONS: dict[str, Function] = {
    "fill": lambda p, x: x, "negative": lambda p, x: p.negative(x), "absolute": lambda p, x: p.absolute(x),
    "square": lambda p, x: x * x,
    "sqrt": lambda p, x: p.make("sqrt", x), "reciprocal": lambda p, x: 1.0 / x, "sign": sign, "floor": floor,
    "round": rounded, "add": lambda p, x, y: x + y, "subtract": lambda p, x, y: x - y,
    "multiply": lambda p, x, y: x * y, "divide": lambda p, x, y: x / y, "maximum": maximum, "minimum": minimum,
    "subtract_from": lambda p, x, y: y - x, "divide_into": lambda p, x, y: y / x,
    "equal": _truth(IS_EQUAL), "not_equal": _truth(NOT_EQUAL), "less": _truth(LESS), "less_equal": _truth(LESS_EQUAL),
    "greater": _truth(GREATER), "greater_equal": _truth(AT_LEAST),
    "where": lambda p, x, y, z: p.select(p.compare(x, 0.0, NOT_EQUAL), y, z),
    **dict.fromkeys(("multiply_add", "scale_add"), lambda p, x, y, z: p.fma(x, y, z)),
    "scale_multiply": lambda p, x, y, z: x * y * z, "clamp": clamp, "huber": huber,
    "relu_backward": lambda p, grad, y: p.select(p.compare(y, 0.0, GREATER), grad, 0.0),
    "sigmoid_backward": lambda p, grad, y: (1.0 - y) * y * grad,
    "tanh_backward": lambda p, grad, y: p.fnma(y, y, 1.0) * grad, "exp": exp, "log": log, "log1p": log1p,
    "sigmoid": sigmoid, "sigmoid_slope": sigmoid_slope, "softplus": softplus, "log_sigmoid": log_sigmoid, "silu": silu,
    "silu_backward": silu_backward, "tanh_slope": tanh_slope, "arctan": arctan, "arctan2": arctan2,
}  # fmt: skip
#: Kernels of float32 only.
OF_FLOATS: dict[str, Function] = {
    "expm1": expm1, "cosh": cosh, "sinh": sinh, "tanh": tanh, "erf": erf, "erfc": erfc,
    "gelu": gelu, "gelu_backward": gelu_backward, "gelu_tanh": gelu_tanh,
    "gelu_tanh_backward": gelu_tanh_backward, "standardized": standardized,
    "standardize_gradient": standardize_gradient,
    "round_to_half": lambda p, x: p.make("round_half", x), "round_to_bfloat16": round_to_bfloat16,
}  # fmt: skip


def function_of(kernel: str, size: int) -> Function | None:
    """The function that a kernel computes, for elements of that many bytes; None if there is no machine code for it."""
    name = kernel.removesuffix("_number")
    return FUNCTIONS.get(name) or (OF_FLOATS.get(name) if size == 4 else None)
