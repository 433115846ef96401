"""Fit the coefficients of the special functions and write them as a Python module.

Run from the repository root; needs mpmath (about a minute)::

    python tools/fit_special.py > src/backburn/ops/bodies/special_coefficients.py

Each entry of ``FITS`` is a function of one variable, an interval, and for each working precision the degrees of a
rational function (or of a polynomial, if the second degree is 0). The fit minimizes the maximum norm of the
weighted error, by the Remez exchange algorithm in 100-digit arithmetic. One exchange step solves the
levelled problem on m + n + 2 points as the symmetric eigenvalue problem of Pachon and Trefethen, "Barycentric-
Remez algorithms for best polynomial approximation in the chebfun system", BIT 49, 2009 (see also Filip, Nakatsukasa,
Trefethen and Beckermann, "Rational minimax approximation via adaptive barycentric representations", SIAM J. Sci.
Comput. 40, 2018): the one eigenvector without a sign change is the denominator.
"""

# ruff: noqa: D103 - fitted functions are documented by their names and their entries in FITS.

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath as mp

mp.mp.dps = 100
GRID = 600


def evaluate(coefficients: list[Any], x: Any) -> Any:
    """The polynomial with ascending ``coefficients`` at ``x``."""
    result = mp.mpf(0)
    for c in reversed(coefficients):
        result = result * x + c
    return result


def interpolate(xs: list[Any], fs: list[Any], m: int, n: int) -> tuple[list[Any], list[Any]]:
    """The rational function of degrees (m, n) through m + n + 1 points."""
    count = m + n + 1
    rows = [[x**j for j in range(m + 1)] + [-f * x**j for j in range(1, n + 1)] for x, f in zip(xs, fs, strict=True)]
    solution = mp.lu_solve(mp.matrix(rows), mp.matrix(fs))
    return [solution[j] for j in range(m + 1)], [mp.mpf(1)] + [solution[j] for j in range(m + 1, count)]


def levelled(xs: list[Any], fs: list[Any], ws: list[Any], m: int, n: int, scale: Any) -> Any:
    """The pole-free (p, q) whose weighted error equioscillates on the m + n + 2 points, and its level."""
    size = m + n + 2
    signs = [(-1) ** i / w for i, w in enumerate(ws)]
    # Divided differences of order m + 1 and above annihilate the numerator, leaving only the denominator unknown.
    difference = [1 / mp.fprod((xs[i] - xs[j]) / scale for j in range(size) if j != i) for i in range(size)]
    moments = [
        [
            mp.fsum(d * g * (x / scale) ** j for d, g, x in zip(difference, values, xs, strict=True))
            for j in range(2 * n + 1)
        ]
        for values in (fs, signs)
    ]
    sign = 1 if moments[1][0] > 0 else -1
    left, right = (mp.matrix([[sign * row[i + j] for j in range(n + 1)] for i in range(n + 1)]) for row in moments)
    inverse = mp.cholesky(right) ** -1
    symmetric = inverse * left * inverse.T
    values, vectors = mp.eigsy((symmetric + symmetric.T) / 2)
    for level, column in sorted(((values[i], i) for i in range(n + 1)), key=lambda pair: abs(pair[0])):
        raw = inverse.T * vectors[:, column]
        q = [raw[j] / raw[0] / scale**j for j in range(n + 1)]
        if all(evaluate(q, x) > 0 for x in xs):
            some = [round(i * (size - 1) / max(m, 1)) for i in range(m + 1)]
            targets = [(fs[i] - level * signs[i]) * evaluate(q, xs[i]) for i in some]
            return interpolate([xs[i] for i in some], targets, m, 0)[0], q, level
    raise ArithmeticError(f"degrees ({m}, {n}): every levelled fit has a pole")


def extrema(errors: list[Any], size: int) -> list[int]:
    """The indices of ``size`` alternating extrema of ``errors`` (fewer if it has no more)."""
    found, current = [], 0
    for i, error in enumerate(errors):
        if (error > 0) != (errors[current] > 0):
            found.append(current)
            current = i
        elif abs(error) > abs(errors[current]):
            current = i
    found.append(current)
    while len(found) > size:
        if len(found) == size + 1:
            found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
        else:
            pairs = range(len(found) - 1)
            least = min(pairs, key=lambda j: max(abs(errors[found[j]]), abs(errors[found[j + 1]])))
            del found[least : least + 2]
    return found


def minimax(f: Any, weight: Any, low: Any, high: Any, m: int, n: int) -> Any:
    """The best (p, q) of degrees (m, n) for ``f`` on [low, high], and the largest weighted error."""
    low, high = mp.mpf(low), mp.mpf(high)
    grid = [low + (high - low) * (1 - mp.cos(mp.pi * i / GRID)) / 2 for i in range(GRID + 1)]
    fs = [f(x) for x in grid]
    ws = [weight(x) if weight else 1 / abs(y) for x, y in zip(grid, fs, strict=True)]
    count = m + n + 1
    nodes = [round((2 * i + 1) * GRID / (2 * count)) for i in range(count)]
    p, q = interpolate([grid[i] for i in nodes], [fs[i] for i in nodes], m, n)
    best: Any = None
    level = mp.mpf(0)
    for _ in range(40):
        errors = [w * (evaluate(p, x) / evaluate(q, x) - y) for w, x, y in zip(ws, grid, fs, strict=True)]
        largest = max(map(abs, errors))
        if best is None or largest < best[2]:
            best = (p, q, largest)
        reference = extrema(errors, count + 1)
        if len(reference) <= count or largest <= abs(level) * mp.mpf("1.01"):
            break
        xs, values, weights = ([v[i] for i in reference] for v in (grid, fs, ws))
        p, q, level = levelled(xs, values, weights, m, n, high)
    return best


def everywhere(f: Any, shift: int, m: int, n: int) -> Any:
    """The best (p, q) for ``f`` on all ``x >= 0``, by a fit in ``1 / (x + shift)``, and the largest relative error."""
    *parts, error = minimax(lambda w: f(1 / w - shift if w else mp.inf), None, 0, mp.mpf(1) / shift, m, n)
    powers = [[mp.binomial(d, j) * mp.mpf(shift) ** (d - j) for j in range(d + 1)] for d in range(max(m, n) + 1)]
    for i, c in enumerate(parts):
        parts[i] = [mp.fsum(c[len(c) - 1 - d] * powers[d][j] for d in range(j, len(c))) for j in range(len(c))]
    return (*parts, error)


# ------------------------------------------------------------------------------------------------ fitted functions

tiny = mp.mpf("1e-24")
positive_root = mp.findroot(mp.digamma, mp.mpf("1.4616321449683623"))
stirling_constant = (mp.log(2 * mp.pi) - 1) / 2


def erf_artanh(u: Any) -> Any:
    x = mp.sqrt(u)
    return mp.atanh(mp.erf(x)) / x if u else 2 / mp.sqrt(mp.pi)


def erf_artanh_weight(u: Any) -> Any:
    x = mp.sqrt(u)
    return (1 - mp.erf(x) ** 2) * x / mp.erf(x) if u else mp.sqrt(mp.pi) / 2


def erf_centre(u: Any) -> Any:
    x = mp.sqrt(u)
    return mp.erf(x) / x if u else 2 / mp.sqrt(mp.pi)


def erf_tail(x: Any) -> Any:
    return mp.log(mp.erfc(x))


def erf_tail_weight(x: Any) -> Any:
    return mp.erfc(x) / mp.erf(x)


def erfcx(x: Any) -> Any:
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x) - 1


def erfcx_weight(x: Any) -> Any:
    return 1 / (erfcx(x) + 1)


def erfc_ratio(x: Any) -> Any:
    return (1 / mp.sqrt(mp.pi) / (mp.exp(x * x) * mp.erfc(x)) - x) * (mp.sqrt(mp.pi) + 2 * x) - 1


def erfc_ratio_weight(x: Any) -> Any:
    return 1 / (erfc_ratio(x) + 1)


def erfc_ratio_high(x: Any) -> Any:
    """The ratio of order ``ERFC_RATIO_ORDER``, by the recurrence from order 1: 100 digits allow for those it loses."""
    ratio = 1 / mp.sqrt(mp.pi) / (mp.exp(x * x) * mp.erfc(x)) - x
    order = int(split("ERFC_RATIO_ORDER", 64))
    for n in range(2, order + 1):
        ratio = (1 / (2 * ratio) - x) / n
    half = mp.mpf(order) / 2
    return ratio * (2 * mp.gamma(half + 1) / mp.gamma(half + mp.mpf(1) / 2) + 2 * x) - 1


def erfc_ratio_high_weight(x: Any) -> Any:
    return 1 / (erfc_ratio_high(x) + 1)


def mills_slope(order: int) -> Callable[[Any], Any]:
    """A derivative of log(ndtr) at ``-t``, times a polynomial, so that it is ``(order - 1)!`` plus terms of ``t**-3``.

    Its argument is ``t`` plus INVERSE_MILLS_SPLIT.
    """

    def slope(t: Any) -> Any:
        if t > mp.mpf("1e9"):
            return mp.factorial(order - 1)
        t -= split("INVERSE_MILLS_SPLIT", 64)
        inverse = mp.npdf(t) / mp.ncdf(-t)
        distance = inverse - t
        variance = 1 - inverse * distance
        third = inverse * (distance**2 - variance)
        if order == 3:
            return third * (t * (t * t + 12) + 30)
        return (inverse * distance * (3 * variance - distance**2) - inverse * third) * (t * t + 10) ** 2

    return slope


def erfinv_centre(t: Any) -> Any:
    u = split("ERFINV_SPLIT", 64) ** 2 - t
    x = mp.sqrt(u)
    return (mp.erfinv(x) / x if u > tiny else mp.sqrt(mp.pi) / 2) - 1


def erfinv_centre_weight(t: Any) -> Any:
    return 1 / (erfinv_centre(t) + 1)


def erfinv_tail(s: Any) -> Any:
    return s - mp.erfinv(1 - mp.exp(-s * s))


def erfinv_tail_weight(s: Any) -> Any:
    return 1 / (s - erfinv_tail(s))


def erfinv_far(s: Any) -> Any:
    """``s - y`` with ``erfc(y) = exp(-s**2)``, by Newton's method on the logarithm."""
    y = s - mp.log(s * mp.sqrt(mp.pi)) / (2 * s)
    for _ in range(8):
        tail = mp.erfc(y)
        y += (mp.log(tail) + s * s) * tail * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
    return s - y


def erfinv_far_weight(s: Any) -> Any:
    return 1 / (s - erfinv_far(s))


def lgamma_middle(z: Any) -> Any:
    return mp.loggamma(z).real / ((z - 1) * (z - 2)) - split("LGAMMA_OFFSET", 64)


def lgamma_middle_weight(z: Any) -> Any:
    return 1 / (lgamma_middle(z) + split("LGAMMA_OFFSET", 64))


def lgamma_tail(v: Any) -> Any:
    if v < tiny:
        return mp.mpf(1) / 12
    x = 1 / mp.sqrt(v)
    return (mp.loggamma(x).real - (x - mp.mpf(1) / 2) * (mp.log(x) - 1) - stirling_constant) * x


def lgamma_tail_weight(v: Any) -> Any:
    x = 1 / mp.sqrt(max(v, tiny))
    return 1 / (x * mp.loggamma(x).real)


def digamma_middle(z: Any) -> Any:
    return mp.digamma(z) / (z - positive_root) - split("DIGAMMA_OFFSET", 64)


def digamma_middle_weight(z: Any) -> Any:
    return 1 / (digamma_middle(z) + split("DIGAMMA_OFFSET", 64))


def digamma_tail(v: Any) -> Any:
    if v < tiny:
        return mp.mpf(1) / 12
    x = 1 / mp.sqrt(v)
    return (mp.log(x) - 1 / (2 * x) - mp.digamma(x)) * x * x


def digamma_tail_weight(v: Any) -> Any:
    x = 1 / mp.sqrt(max(v, tiny))
    return 1 / (x * x * mp.digamma(x))


def bessel(order: int) -> Callable[[Any], Any]:
    def small(u: Any) -> Any:
        x = mp.sqrt(u)
        return mp.besseli(order, x) / x**order if u else mp.mpf(1) / 2**order

    return small


def bessel_scaled(order: int) -> Callable[[Any], Any]:
    """``exp(shift - x) * sqrt(x) * I(x)`` as a function of v = 1/x: exp(x - shift) is finite wherever I(x) is."""
    shift = split("BESSEL_SHIFT", 64)

    def large(v: Any) -> Any:
        if v > mp.mpf("0.004"):
            return mp.exp(shift - 1 / v) / mp.sqrt(v) * mp.besseli(order, 1 / v)
        term, total = mp.mpf(1), mp.mpf(1)
        for j in range(1, 45):
            term *= -v * (4 * order * order - (2 * j - 1) ** 2) / (8 * j)
            total += term
        return mp.exp(shift) * total / mp.sqrt(2 * mp.pi)

    return large


def bessel_large(order: int, bits: int) -> Callable[[Any], Any]:
    return lambda t: bessel_scaled(order)(1 / split("BESSEL_SPLIT", bits) - t) - split("BESSEL_OFFSET", 64)


def bessel_large_weight(order: int, bits: int) -> Callable[[Any], Any]:
    return lambda t: 1 / bessel_scaled(order)(1 / split("BESSEL_SPLIT", bits) - t)


class Fit(NamedTuple):
    """``degrees`` and ``bounds`` (the interval) by working precision in bits; ``f`` and ``weight`` may be so, too.

    With a ``shift`` the interval is all ``x >= 0``, and the fit is in ``1 / (x + shift)``, with equal degrees.
    """

    name: str
    says: str
    f: Any
    bounds: dict[int, tuple[Any, Any]]
    degrees: dict[int, tuple[int, int]]
    weight: Any = None
    shift: int = 0


LIMITS: dict[str, tuple[str, float | dict[int, float]]] = {
    "ERF_LIMIT": ("from here on erf is 1", {32: 3.92, 64: 5.9375}),
    "ERF_SPLIT": ("from here on erf in float64 is 1 - exp(...)", 1.0),
    "ERFC_LIMIT": ("from here on 1 - erf underflows to 0", {32: 10.25, 64: 28.0}),
    "ERFC_RATIO_SPLIT": (
        "from here on ratios of integrals of the complementary error function are continued fractions",
        2.0,
    ),
    "ERFC_RATIO_ORDER": ("the order of ERFC_RATIO_HIGH", 4),
    "INVERSE_MILLS_SPLIT": ("up to here INVERSE_MILLS_2 and 3 are used", 0.5),
    "INVERSE_MILLS_LIMIT": ("from here on INVERSE_MILLS_2 and 3 are constant", {32: 1e3, 64: 1e6}),
    "ERFINV_SPLIT": ("from here on erfinv uses its tail", 0.75),
    "ERFINV_FAR": ("from here on the complement of erfinv uses its far tail", {32: 4.0, 64: 6.0}),
    "LGAMMA_SPLIT": ("from here on lgamma uses Stirling's series", 6.0),
    "LGAMMA_OFFSET": ("the constant added to LGAMMA_MIDDLE", 0.375),
    "DIGAMMA_SPLIT": ("from here on digamma uses its asymptotic series", {32: 4.0, 64: 5.0}),
    "DIGAMMA_OFFSET": ("the constant added to DIGAMMA_MIDDLE", 0.75),
    "BESSEL_SPLIT": ("from here on i0 and i1 use their asymptotic form", {32: 6.0, 64: 8.0}),
    "BESSEL_SHIFT": ("the exponent that I0_LARGE and I1_LARGE contain", 8.0),
    "BESSEL_OFFSET": ("the constant added to I0_LARGE and I1_LARGE", 1189.0),
}


def split(name: str, bits: int) -> Any:
    value = LIMITS[name][1]
    return mp.mpf(value[bits] if isinstance(value, dict) else value)


def by_bits(make: Callable[[int], tuple[Any, Any]]) -> dict[int, tuple[Any, Any]]:
    return {bits: make(bits) for bits in (32, 64)}


FITS = [
    Fit("ERF_ARTANH", "artanh(erf(x)) / x in x**2", erf_artanh,
        {32: (0, split("ERF_LIMIT", 32) ** 2)}, {32: (3, 3)}, erf_artanh_weight),
    Fit("ERF_CENTRE", "erf(x) / x in x**2", erf_centre, {64: (0, split("ERF_SPLIT", 64) ** 2)}, {64: (4, 5)}),
    Fit("ERF_TAIL", "log(1 - erf(x)), weighted for the error of erf", erf_tail,
        {64: (split("ERF_SPLIT", 64), split("ERF_LIMIT", 64))}, {64: (7, 5)}, erf_tail_weight),
    Fit("ERFCX", "(1 + 2 x) exp(x**2) (1 - erf(x)) - 1", erfcx,
        by_bits(lambda b: (0, split("ERFC_LIMIT", b))), {32: (5, 5), 64: (10, 10)}, erfcx_weight),
    Fit("ERFC_RATIO", "(sqrt(pi) + 2 x) (exp(-x**2) / (sqrt(pi) (1 - erf(x))) - x) - 1", erfc_ratio,
        by_bits(lambda b: (0, split("ERFC_LIMIT", b))), {32: (5, 5), 64: (10, 10)}, erfc_ratio_weight),
    Fit("ERFC_RATIO_HIGH", "(1 / r(0) + 2 x) r(x) - 1, with the ratio of such integrals of a higher order",
        erfc_ratio_high, by_bits(lambda b: (0, split("ERFC_RATIO_SPLIT", b))), {32: (4, 3), 64: (7, 7)},
        erfc_ratio_high_weight),
    Fit("INVERSE_MILLS_2", "(t (t**2 + 12) + 30) times the third derivative of log_ndtr at -t, in t + 1/2",
        mills_slope(3), by_bits(lambda b: (0, mp.inf)), {32: (8, 8), 64: (13, 13)}, shift=3),
    Fit("INVERSE_MILLS_3", "(t**2 + 10)**2 times the fourth derivative of log_ndtr at -t, in t + 1/2",
        mills_slope(4), by_bits(lambda b: (0, mp.inf)), {32: (8, 8), 64: (14, 14)}, shift=3),
    Fit("ERFINV_CENTRE", "erfinv(x) / x - 1 in ERFINV_SPLIT**2 - x**2", erfinv_centre,
        by_bits(lambda b: (0, split("ERFINV_SPLIT", b) ** 2)), {32: (3, 3), 64: (6, 6)}, erfinv_centre_weight),
    Fit("ERFINV_TAIL", "s - erfinv(x) in s = sqrt(-log(1 - x))", erfinv_tail,
        {b: (mp.sqrt(-mp.log(1 - split("ERFINV_SPLIT", b))), top) for b, top in ((32, 4.09), (64, 6.1))},
        {32: (4, 3), 64: (8, 8)}, erfinv_tail_weight),
    Fit("ERFINV_FAR_TAIL", "s - erfinv(x) in s, where 1 - x is too small for a difference", erfinv_far,
        {b: (split("ERFINV_FAR", b), top) for b, top in ((32, 10.2), (64, 27.4))},
        {32: (3, 4), 64: (7, 7)}, erfinv_far_weight),
    Fit("LGAMMA_MIDDLE", "lgamma(x) / ((x - 1) (x - 2)) - LGAMMA_OFFSET", lgamma_middle,
        by_bits(lambda b: (0.5, split("LGAMMA_SPLIT", b))), {32: (5, 5), 64: (10, 10)}, lgamma_middle_weight),
    Fit("LGAMMA_TAIL", "The rest of Stirling's formula, times x, in x**-2", lgamma_tail,
        by_bits(lambda b: (0, 1 / split("LGAMMA_SPLIT", b) ** 2)), {32: (1, 0), 64: (5, 0)}, lgamma_tail_weight),
    Fit("DIGAMMA_MIDDLE", "digamma(x) / (x - root) - DIGAMMA_OFFSET", digamma_middle,
        by_bits(lambda b: (0.5, split("DIGAMMA_SPLIT", b))), {32: (4, 4), 64: (8, 8)}, digamma_middle_weight),
    Fit("DIGAMMA_TAIL", "(log(x) - 1 / (2 x) - digamma(x)) x**2 in x**-2", digamma_tail,
        by_bits(lambda b: (0, 1 / split("DIGAMMA_SPLIT", b) ** 2)), {32: (2, 0), 64: (7, 0)}, digamma_tail_weight),
]  # fmt: skip
for order in (0, 1):
    FITS += [
        Fit(f"I{order}_SMALL", f"i{order}(x)" + " / x" * order + " in x**2", bessel(order),
            by_bits(lambda b: (0, split("BESSEL_SPLIT", b) ** 2)), {32: (8, 0), 64: (15, 0)}),
        Fit(f"I{order}_LARGE", f"exp(8 - x) sqrt(x) i{order}(x) - BESSEL_OFFSET in 1 / BESSEL_SPLIT - 1 / x",
            {bits: bessel_large(order, bits) for bits in (32, 64)},
            by_bits(lambda b: (0, 1 / split("BESSEL_SPLIT", b))), {32: (6, 0), 64: (10, 9)},
            {bits: bessel_large_weight(order, bits) for bits in (32, 64)}),
    ]  # fmt: skip


def rounded(x: Any, bits: int) -> float:
    """``x`` in float64, or in float32."""
    if bits == 64:
        return float(x)
    mantissa, exponent = mp.frexp(x)
    return float(mp.ldexp(mp.nint(mp.ldexp(mantissa, 24)), int(exponent) - 24))


def literal(x: Any, bits: int) -> str:
    """A decimal that reads back as the nearest value of that precision."""
    return repr(float(x) if bits == 64 else float(mp.nstr(mp.mpf(rounded(x, 32)), 9)))


def wrapped(values: list[str], indent: str) -> str:
    """The tuple of ``values``, wrapped at 110 characters."""
    lines, line = [], indent
    for value in values:
        if len(line) + len(value) + 2 > 110:
            lines.append(line.rstrip())
            line = indent
        line += value + ", "
    return "\n".join([*lines, line.rstrip()])


def main() -> None:
    print('"""Coefficients of the special functions: written by ``tools/fit_special.py``, not by hand.')
    print()
    print("Each table has one entry per working precision in bits. A rational function is a numerator and a")
    print('denominator, a polynomial a numerator alone; coefficients ascend, and a denominator ends in 1.\n"""\n')
    print("from __future__ import annotations\n\nfrom typing import Final\n")
    print("Polynomial = tuple[float, ...]\nRational = tuple[Polynomial, Polynomial]\n")
    for name, (says, value) in LIMITS.items():
        kind = "Final[dict[int, float]]" if isinstance(value, dict) else "Final"
        print(f"# {says[0].upper()}{says[1:]}.\n{name}: {kind} = {value!r}")
    print("# The positive root of digamma, as a sum.\nDIGAMMA_ROOT: Final[dict[int, tuple[float, float]]] = {")
    for bits in (32, 64):
        high = rounded(positive_root, bits)
        print(f"    {bits}: ({high!r}, {float(positive_root - high)!r}),")
    print("}")
    print(f"# (log(2 pi) - 1) / 2.\nSTIRLING: Final = {float(stirling_constant)!r}")
    print("\n# fmt: off")
    for fit in FITS:
        rational = any(n for _, n in fit.degrees.values())
        print(f"\n# {fit.says}.")
        print(f"{fit.name}: Final[dict[int, {'Rational' if rational else 'Polynomial'}]] = {{")
        for bits, (m, n) in fit.degrees.items():
            f, weight = (g[bits] if isinstance(g, dict) else g for g in (fit.f, fit.weight))
            p, q, error = everywhere(f, fit.shift, m, n) if fit.shift else minimax(f, weight, *fit.bounds[bits], m, n)
            low, high_ = (mp.nstr(mp.mpf(b), 4).lstrip("+") for b in fit.bounds[bits])
            about = f"degrees {m} / {n}" if rational else f"degree {m}"
            print(f"    # {about} on [{low}, {high_}], error 2**{float(mp.log(error, 2)):.1f}")
            print(f"    {bits}: (")
            for part in (p, q) if rational else (p,):
                values = [literal(c / q[-1], bits) for c in part]
                if rational:
                    print("        (\n" + wrapped(values, " " * 12) + "\n        ),")
                else:
                    print(wrapped(values, " " * 8))
            print("    ),")
            print(fit.name, bits, float(mp.log(error, 2)), file=sys.stderr)
        print("}")


if __name__ == "__main__":
    main()
