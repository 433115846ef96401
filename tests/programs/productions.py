"""Productions: the functions that draw operands and write the lines of random programs.

A production returns the text of an expression, or of statements that assign to ``$``, or None if no value fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.programs.generator import Draw, Value

UNARY = (
    *("bb.tanh({})", "bb.tanh({})", "bb.sigmoid({})", "-{}", "bb.abs({})", "bb.square({})", "bb.exp({} * 0.25)"),
    *("bb.exp(-bb.abs({}))", "bb.expm1({} * 0.1)", "bb.log1p(bb.abs({}))", "bb.log(bb.square({}) + 0.5)"),
    *("bb.sqrt(bb.abs({}) + 0.1)", "bb.rsqrt({} ** 2.0 + 1.0)", "bb.sin({})", "bb.cos({})", "bb.atan({})"),
    *("bb.asinh({})", "bb.erf({})", "F.gelu({})", "F.silu({})", "bb.relu({})", "F.softplus({})", "F.leaky_relu({})"),
    *("F.elu({})", "F.hardtanh({})", "bb.sign({})", "bb.floor({} * 2.0)", "bb.round({})", "bb.clip({}, -0.5, 0.8)"),
    *("bb.reciprocal(bb.abs({}) + 1.0)", "bb.exp2({} * 0.5)", "F.log_sigmoid({})", "F.mish({})", "F.hard_swish({})"),
    *("bb.lgamma(bb.abs({}) + 1.0)", "bb.digamma(bb.abs({}) + 1.0)", "bb.erfc({})", "bb.i0e({})", "bb.sinc({})"),
    *("bb.ndtr({})", "{} ** 3.0", "{} ** 2", "(bb.abs({}) + 0.5) ** 0.5", "bb.nan_to_num({})", "bb.stop_gradient({})"),
    *("F.relu6({})", "F.softsign({})", "F.tanhshrink({})", "F.softshrink({})", "F.selu({})", "bb.trunc({})"),
    *("bb.cosh({} * 0.3)", "bb.log2(bb.abs({}) + 1.0)", "bb.frac({})", "bb.acos({} * 0.03)", "bb.positive({})"),
    "F.softplus({}, beta=2.0)",
)
#: The sign of the least or the largest of 0.0 and -0.0 is either, so none decides about a result.
BINARY = (
    *("{} + {}", "{} + {}", "{} - {}", "{} * {}", "{} * {}", "{} / (bb.abs({}) + 1.0)", "bb.maximum({}, {})"),
    *("bb.minimum({}, {})", "bb.hypot({}, {})", "bb.atan2({} + 0.001, {})", "bb.logaddexp({}, {})"),
    *(
        "bb.lerp({}, {}, 0.3)",
        "bb.exp(bb.tanh({})) ** {}",
        "bb.copysign({}, {} + 0.001)",
        "bb.fmax({}, {})",
        "bb.where({} > 0.0, {}, 0.5)",
    ),
    *("bb.xlogy({}, bb.abs({}) + 0.5)", "F.prelu({}, {})", "{} * 0.5 + {} * 2.0", "bb.tanh({} + {}) * 0.7 - 1.0"),
)
REDUCTIONS = (
    *("bb.sum", "bb.sum", "bb.mean", "bb.mean", "bb.max", "bb.min", "bb.var", "bb.std", "bb.logsumexp"),
    *("bb.vector_norm", "bb.median", "bb.prod", "bb.max_abs"),
)
RUNNING = (
    *("bb.softmax({}, axis={})", "F.log_softmax({}, axis={})", "bb.cumulative_sum({}, axis={})", "bb.cummax({}, {})"),
    *("bb.logcumsumexp({}, axis={})", "bb.sort({}, axis={})", "bb.flip({}, axis={})", "bb.diff({}, axis={})"),
    *("F.softmin({}, axis={})", "bb.sort({}, axis={}, descending=True)", "bb.cumulative_prod(bb.tanh({}), axis={})"),
    *("F.normalize({}, axis={})", "bb.argsort({}, axis={})", "bb.roll({}, 1, axis={})", "bb.roll({}, -2, axis={})"),
)


def part(d: Draw, v: Value) -> tuple[str, tuple[int, ...]]:
    """A value indexed with slices and integers, as text, and its shape."""
    keys: list[Any] = []
    for n in v.shape[: d.rng.randint(1, max(1, len(v.shape)))]:
        kind = d.rng.random()
        if kind < 0.12 and n:
            keys.append(d.rng.randrange(-n, n))
        elif kind < 0.25:
            keys.append(slice(None))
        elif kind < 0.4 and n > 1:
            keys.append(slice(None, None, d.one((2, 3, -1, -2))))
        else:
            start = d.one((None, None, 0, 1, n // 2, -1, d.rng.randint(0, n)))
            keys.append(slice(start, d.one((None, None, -1, 1, n // 2 + 1, d.rng.randint(0, n)))))
    if not v.shape:
        return v.name, ()
    if d.chance(0.05):
        keys.append(Ellipsis)
    if d.chance(0.05):
        keys.insert(d.rng.randrange(len(keys) + 1), None)
    shape = np.broadcast_to(np.float32(0), v.shape)[tuple(keys)].shape
    return f"{v.name}[{', '.join(map(_key, keys))}]", tuple(shape)


def _key(key: Any) -> str:
    if not isinstance(key, slice):
        return "..." if key is Ellipsis else repr(key)
    start, stop, step = ("" if x is None else str(x) for x in (key.start, key.stop, key.step))
    return f"{start}:{stop}" + (f":{step}" if step else "")


def operand(d: Draw, *, ndim: int | None = None) -> tuple[str, tuple[int, ...], str]:
    """A float operand as text (a value, an indexed value or an expression), its shape and its dtype."""
    v = d.any(lambda v: ndim is None or len(v.shape) == ndim) or d.new(d.shape(ndim))
    if ndim is None and d.chance(0.2):
        return (*part(d, v), v.dtype)
    if d.chance(0.1):
        return f"({v.name} * {d.one((0.5, 2.0, -1.0))})", v.shape, v.dtype
    return v.name, v.shape, v.dtype


def axis_of(d: Draw, v: Value) -> int:
    return d.rng.randrange(-len(v.shape), len(v.shape))


# ---- element-wise operations, moves ----


def unary(d: Draw) -> str:
    return str(d.one(UNARY)).format(operand(d)[0])


def binary(d: Draw) -> str:
    text, shape, dtype = operand(d)
    both = [text, d.partner(shape, dtype)]
    if d.chance(0.3) and "v" in both[1] + text:
        both.reverse()
    return str(d.one(BINARY)).format(*both)


def joined(d: Draw) -> str | None:
    """A concatenation or a stack of values, slices of values, and new values."""
    v = d.array(d.rng.randint(1, 3))
    if v.size > 40000:
        return None
    count = d.one((1, 2, 2, 2, 3, 3, 4, 7))
    if d.chance(0.4):
        like = [v.name, f"{v.name} * 2.0", f"bb.exp({v.name} * 0.3)", f"bb.tanh({v.name})", d.of(v.shape).name]
        if len({v.dtype, d.dtype}) > 1:
            like.pop()
        return f"bb.stack([{', '.join(d.one(like) for _ in range(count))}], axis={d.rng.randrange(len(v.shape) + 1)})"
    axis = axis_of(d, v)
    at = axis % len(v.shape)
    lead = ":, " * at
    parts = [f"{v.name}[{lead}{k}]" for k in (":1", ":-1", "-1:", "1:", ":", "::2", "::-1", ":4", "2:5", ":0")]
    makes = (*(["{}"] * 6), "{} * 0.5", "bb.tanh({})", "bb.relu({} - 0.1)")
    found = [d.one(makes).format(d.one([*parts, v.name])) for _ in range(count)]
    others = [
        w.name
        for w in d.values
        if w.dtype == v.dtype
        and len(w.shape) == len(v.shape)
        and w.shape[:at] + w.shape[at + 1 :] == v.shape[:at] + v.shape[at + 1 :]
    ]
    found += [d.one(others)]
    d.rng.shuffle(found)
    return f"bb.concat([{', '.join(found)}], axis={axis})"


def whole_parts(d: Draw) -> str | None:
    """Arithmetic on slices of one value, as in differences and their gradients."""
    v = d.any(lambda v: bool(v.shape) and v.shape[0] > 2)
    if v is None:
        return None
    pieces = ("{0}[1:] - {0}[:-1]", "{0}[:-1] * 0.5 + {0}[1:]", "({0}[2:] - {0}[:-2]) * 0.5", "{0}[1:] * {0}[:1]")
    return str(d.one(pieces)).format(v.name)


def sliced(d: Draw) -> str | None:
    v = d.any(lambda v: bool(v.shape))
    return None if v is None else part(d, v)[0]


def moved(d: Draw) -> str | None:
    v = d.any() or d.new(d.shape())
    n, shape = len(v.shape), v.shape
    kind = d.rng.randrange(16)
    if kind < 3:
        return f"bb.permute_dims({v.name}, {tuple(d.rng.sample(range(n), n))})"
    if kind < 6:
        sides = [s for s in shape if s != 1] if d.chance(0.5) else [*shape]
        if d.chance(0.5) and len(sides) > 1:
            at = d.rng.randrange(len(sides) - 1)
            sides[at : at + 2] = [sides[at] * sides[at + 1]]
        elif sides and d.chance(0.6):
            at = d.rng.randrange(len(sides))
            divisor = next((k for k in (2, 3, 5, 7, 4) if sides[at] % k == 0), 1)
            sides[at : at + 1] = [divisor, sides[at] // divisor]
        if d.chance(0.3):
            d.rng.shuffle(sides)
        return f"bb.reshape({v.name}, {tuple(sides)})"
    if kind == 6:
        return f"bb.expand_dims({v.name}, axis={d.rng.randint(0, n)})"
    if v.size > 20000:
        return f"bb.swapaxes({v.name}, 0, -1)" if n > 1 else None
    if kind == 7:
        return f"bb.broadcast_to({v.name}, {(d.rng.randint(1, 5), *shape)})"
    if kind == 8:
        return f"bb.tile({v.name}, {tuple(d.rng.randint(1, 2) for _ in shape)})"
    if not n:
        return f"bb.full((3,), 0.5) * {v.name}" if v.dtype == "float32" else None
    if kind == 9:
        return f"bb.repeat({v.name}, {d.rng.randint(1, 3)}, axis={axis_of(d, v)})"
    if kind == 10:
        mode = d.one(("constant", "constant", "reflect", "replicate", "circular"))
        most = 2 if mode == "constant" else max(0, min(shape) - 1)
        widths = [(d.rng.randint(0, min(2, most)), d.rng.randint(0, min(2, most))) for _ in shape]
        return f"bb.pad({v.name}, {widths}, mode={mode!r})"
    if kind == 11 and shape[-1] > 1:
        size = d.rng.randint(1, shape[-1])
        return f"bb.sliding_window({v.name}, {size}, stride={d.rng.randint(1, 2)})"
    if kind == 12:
        return f"bb.concat([*reversed(bb.chunk({v.name}, {d.rng.randint(1, 3)}))])"
    if kind == 13 and 0 < shape[0] < 9:
        return f"bb.stack([t * {d.one((1.0, 0.5))} for t in bb.unstack({v.name})][::{d.one((1, -1))}])"
    if n > 1:
        offset = d.rng.randint(-2, 2)
        texts = ("bb.diagonal({}, offset={})", "bb.triu({}, {})", "bb.tril({}, {})")
        turns = ("bb.rot90({})", "bb.moveaxis({}, 0, -1)", "{}.T")
        return str(d.one((*texts, *turns))).format(v.name, offset)
    return f"bb.diag({v.name})" if shape[0] < 40 else None


# ---- gather, scatter ----


def gathered(d: Draw) -> str | None:
    v = d.any(lambda v: bool(v.shape) and v.size > 0 and v.size < 40000)
    if v is None:
        return None
    axis = axis_of(d, v)
    n, count = v.shape[axis], d.one((1, 2, 3, 5, 8))
    kind = d.rng.randrange(7)
    if kind == 0:
        return f"bb.take({v.name}, bb.asarray({d.indices((count,), n)}), axis={axis})"
    if kind == 1:
        return f"{v.name}[{[d.rng.randrange(-v.shape[0], v.shape[0]) for _ in range(count)]}]"
    if kind == 2:
        shape = tuple(count if a == axis % len(v.shape) else s for a, s in enumerate(v.shape))
        return f"bb.take_along_axis({v.name}, {d.new(shape, 'int64', n).name}, axis={axis})"
    if kind == 3 and len(v.shape) == 2:
        return f"F.embedding({d.new(d.one(((count,), (2, 3))), 'int64', v.shape[0]).name}, {v.name})"
    if kind == 4:
        depth = d.rng.randint(1, len(v.shape))
        return f"bb.gather_nd({v.name}, {d.new((count, depth), 'int64', min(v.shape[:depth])).name})"
    if kind == 5:
        return f"bb.take_along_axis({v.name}, bb.argsort({v.name}, axis={axis}), axis={axis})"
    return f"{v.name}[{d.new((count,), 'int64', v.shape[0]).name}]"


def scattered(d: Draw) -> str | None:
    v = d.any(lambda v: bool(v.shape) and 0 < v.size < 40000)
    if v is None:
        return None
    axis = axis_of(d, v)
    at, n, count = axis % len(v.shape), v.shape[axis], d.one((1, 2, 3, 5))
    shape = tuple(count if a == at else s for a, s in enumerate(v.shape))
    values = d.of(shape, v.dtype).name
    kind = d.rng.randrange(5)
    if kind == 0:
        return f"bb.index_add({v.name}, {d.new((count,), 'int64', n).name}, {values}, {axis})"
    if kind == 1:
        places = d.rng.sample(range(n), min(n, count))
        shape = tuple(len(places) if a == at else s for a, s in enumerate(v.shape))
        return f"bb.index_copy({v.name}, bb.asarray({places}), {d.of(shape, v.dtype).name}, {axis})"
    if kind == 2:
        mode = d.one(("add", "add", "amax", "mean"))
        return f"bb.scatter({v.name}, {d.new(shape, 'int64', n).name}, {values}, {axis}, mode={mode!r})"
    if kind == 3:
        index = d.new((count, 1), "int64", v.shape[0]).name
        return f"bb.scatter_nd({v.name}, {index}, {d.of((count, *v.shape[1:]), v.dtype).name}, mode='add')"
    return f"bb.masked_fill({v.name}, {d.partner(v.shape, v.dtype)} > 0.1, 0.25)"


# ---- reductions ----


def reduced(d: Draw) -> str | None:
    v = d.any(lambda v: v.size > 0)
    if v is None:
        return None
    name, n = d.one(REDUCTIONS), len(v.shape)
    axes: Any = None
    if n and d.chance(0.8):
        axes = axis_of(d, v)
        if n > 1 and d.chance(0.3) and name in ("bb.sum", "bb.mean", "bb.max", "bb.min", "bb.var"):
            axes = tuple(d.rng.sample(range(n), 2))
    inner = f"bb.tanh({v.name})" if name == "bb.prod" else v.name
    return f"{name}({inner}, axis={axes}, keepdims={d.chance(0.3)})"


def running(d: Draw) -> str | None:
    v = d.any(lambda v: bool(v.shape) and v.size > 0)
    if v is None:
        return None
    text: str = d.one(RUNNING).format(v.name, axis_of(d, v))
    if "argsort" in text:
        return text + f" * 1.0 + {v.name} * 0.0" if v.dtype == "float32" else None
    return text


def selected(d: Draw) -> str | None:
    """Extrema with indices, top-k, positions, and expressions with integers and bools."""
    v = d.any(lambda v: bool(v.shape) and v.size > 0)
    if v is None:
        return None
    axis, name = axis_of(d, v), v.name
    k = d.rng.randint(1, v.shape[axis])
    return str(
        d.one(
            (
                *(f"bb.topk({name}, {k}, axis={axis})[0]", f"bb.max_with_indices({name}, axis={axis})[0]"),
                *(f"bb.argmax({name}, axis={axis})", f"bb.count_nonzero({name} > 0.1, axis={axis})"),
                *(f"bb.any({name} > 1.0, axis={axis})", f"bb.where({name} > bb.mean({name}), {name}, {name} * 0.1)"),
                *(f"bb.astype({name} > 0.0, bb.{v.dtype}) * {name}", f"bb.quantile({name}, 0.3, axis={axis})"),
                f"bb.astype(bb.one_hot(bb.argmax({name}, axis={axis}), {v.shape[axis]}), bb.{v.dtype})",
            )
        )
    )


# ---- products ----


def multiplied(d: Draw) -> str | None:
    x = d.array(d.one((2, 2, 2, 3)), 20000)
    n, rows = x.shape[-1], x.shape[-2]
    width = d.one((1, 2, 3, 5, 8, 16, 17, n)) if n < 300 else 2
    scale = f" * {round(1 / max(1, n) ** 0.5, 4)}"
    kind = d.rng.randrange(12)
    if kind < 3:
        return f"({x.name} @ {d.of((n, width), x.dtype).name}){scale}"
    if kind < 5:
        bias = d.of((width,), x.dtype).name if d.chance(0.6) else None
        return f"F.linear({x.name}, {d.of((width, n), x.dtype).name}{scale}, {bias})"
    if kind == 5 and x.size < 3000:
        return f"({x.name} @ bb.swapaxes({x.name}, -1, -2)){scale}"
    if kind == 6:
        return f"({x.name} @ {d.of((n,), x.dtype).name}){scale}"
    if kind == 7:
        y = d.of(x.shape, x.dtype).name
        text = "bb.vecdot({0}, {1})", "bb.einsum('...i,...i->...', {0}, {1})", "bb.sum({0} * {1}, axis=-1)"
        return str(d.one(text)).format(x.name, y) + scale
    if kind == 8 and rows * width < 3000:
        return f"bb.einsum('...ij,ik->...jk', {x.name}, {d.of((rows, width), x.dtype).name}) * 0.3"
    if kind == 9 and x.dtype in ("float32", "float64") and n < 100:
        hidden = d.one((2, 5, 8))
        weights = f"{d.of((hidden, n), x.dtype).name}{scale}, None, {d.of((n, hidden), x.dtype).name} * 0.5, None"
        return f"F.feed_forward({x.name}, {weights}, {d.one(('gelu', 'relu', 'silu'))!r})"
    if kind == 10 and n < 30 and len(x.shape) == 2 and x.dtype in ("float32", "float64"):
        gram = f"({x.name}.T @ {x.name} * 0.1 + bb.eye({n}, dtype=bb.{x.dtype}) * 2.0)"
        texts = ("bb.linalg.inv({0})", "bb.linalg.cholesky({0})", "bb.linalg.solve({0}, {0}[0])")
        return str(d.one(texts)).format(gram)
    return f"bb.tensordot({x.name}, {d.of((n, width), x.dtype).name}, axes=1){scale}"


def attention(d: Draw) -> str | None:
    heads, length, size = d.one((1, 2)), d.one((1, 3, 8, 17)), d.one((2, 4, 8))
    q, k, v = (d.of((heads, length, size)).name for _ in range(3))
    return f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={d.chance(0.5)})"


def normalized(d: Draw) -> str | None:
    v = d.array(d.one((1, 2, 2, 3)))
    n = v.shape[-1]
    scale, shift = (d.of((n,), v.dtype).name if d.chance(0.6) else None for _ in range(2))
    kind = d.rng.randrange(6)
    if kind < 2:
        return f"F.layer_norm({v.name}, {scale}, {shift})"
    if kind == 2:
        return f"F.rms_norm({v.name}, {scale})"
    if len(v.shape) < 2 or v.shape[0] * n < 2:
        return None
    channels = v.shape[1]
    scale, shift = (d.of((channels,), v.dtype).name if d.chance(0.6) else None for _ in range(2))
    if kind == 3:
        mean, variance = d.of((channels,), v.dtype).name, d.of((channels,), v.dtype).name
        return f"F.batch_norm({v.name}, {mean}, bb.square({variance}) + 0.5, {scale}, {shift})"
    if kind == 4:
        return f"F.batch_norm_training({v.name}, {scale}, {shift})[0]"
    groups = next(k for k in (3, 2, 1) if channels % k == 0)
    return f"F.group_norm({v.name}, {groups}, {scale}, {shift})"


def convolved(d: Draw) -> str | None:
    axes = d.one((1, 1, 2, 2))
    v = d.any(lambda v: len(v.shape) == axes + 2 and 0 < v.size < 3000 and min(v.shape[2:]) > 1)
    if v is None:
        v = d.new((d.one((1, 2, 3)), d.one((1, 2, 4)), *(d.one((3, 5, 8, 9)) for _ in range(axes))))
    channels, kernel, outputs = v.shape[1], d.one((1, 2, 3)), d.one((1, 2, 3, 4))
    groups = 2 if channels % 2 == outputs % 2 == 0 and d.chance(0.3) else 1
    options = f"stride={d.one((1, 1, 2))}, padding={d.one((0, 1))}"
    kind = d.rng.randrange(8)
    if kind < 3:
        weight = d.of((outputs, channels // groups, *[kernel] * axes), v.dtype).name
        bias = d.of((outputs,), v.dtype).name if d.chance(0.5) else None
        text = f"F.conv({v.name}, {weight} * 0.3, {bias}, {options}, dilation={d.one((1, 1, 2))}, groups={groups})"
        return f"bb.relu({text})" if d.chance(0.3) else text
    if kind == 3:
        weight = d.of((channels, outputs, *[kernel] * axes), v.dtype).name
        return f"F.conv_transpose({v.name}, {weight} * 0.3, None, {options})"
    if kind == 4:
        return f"F.max_pool({d.one(('{}', 'bb.relu({})')).format(v.name)}, 2, {options})"
    if kind == 5:
        return f"F.avg_pool({v.name}, 2, {options})"
    if kind == 6:
        return f"F.interpolate({v.name}, scale_factor=2, mode={'nearest' if axes == 1 else 'bilinear'!r})"
    return f"F.adaptive_avg_pool({v.name}, {(2,) * axes})" if axes == 1 else f"F.unfold({v.name}, 2)"


def recurrent(d: Draw) -> str | None:
    """Recurrent cells, layers and loops over rows, with one weight for all steps."""
    length, rows, size = d.one((1, 2, 3, 5, 8)), d.one((1, 2, 3, 5)), d.one((1, 2, 3, 5, 8))
    kind = d.rng.randrange(8)
    if kind < 2:
        xs, w, h = d.of((length, rows, size)).name, d.of((size, size)).name, d.of((rows, size)).name
        steps = ("bb.tanh(h @ {w} + x)", "bb.tanh(h @ {w}.T * 0.5) * x", "bb.tanh(x @ {w} + h)", "h * 0.5 + x")
        step = d.one(steps).format(w=w)
        end = d.one(("h", "bb.stack(hs)", "bb.stack(hs, axis=1)", "bb.concat(hs, axis=1)", "bb.stack(hs) ** 2.0"))
        return f"h, hs = {h}, []\nfor x in {xs}:\n    h = {step}\n    hs.append(h)\n$ = {end}"
    if kind == 2:
        xs, w, h = d.of((length, size)).name, d.of((size,)).name, d.of((size,)).name
        loop = f"for i in range({length}):\n    h = bb.tanh(h * {w} + {xs}[i])\n    hs.append(h)"
        return f"h, hs = {h}, []\n{loop}\n$ = bb.stack(hs)"
    is_lstm = d.chance(0.5)
    wide = size * (4 if is_lstm else 3)
    xs, w = d.of((length, rows, wide)).name, f"{d.of((wide, size)).name} * 0.5"
    h = d.of((rows, size)).name
    bias = d.of((wide,)).name if d.chance(0.5) else None
    if kind == 3:
        if is_lstm:
            return f"F.lstm({xs}, {h}, {d.of((rows, size)).name}, {w}, {bias})[0]"
        return f"F.gru({xs}, {h}, {w}, {bias})"
    if kind == 4 and length > 1:
        a = d.of((length, rows)).name
        return f"F.ssm_scan(bb.sigmoid({a}), {d.of((length, rows)).name}, {d.of((length, rows)).name})"
    if is_lstm:
        c = d.of((rows, size)).name
        step, start = f"h, c = F.lstm_cell(x, h, c, w, {bias})", f"h, c, hs, w = {h}, {c}, [], {w}"
    else:
        step, start = f"h = F.gru_cell(x, h, w, {bias})", f"h, hs, w = {h}, [], {w}"
    end = d.one(("h", "bb.stack(hs)", "bb.concat(hs)"))
    return f"{start}\nfor x in {xs}:\n    {step}\n    hs.append(h)\n$ = {end}"


# ---- others ----


def drawn(d: Draw) -> str | None:
    """Random numbers."""
    if not d.has_random:
        return None
    v = d.any()
    if v is None:
        return None
    shape, dtype = v.shape, v.dtype
    texts = (
        *(f"F.dropout({v.name}, {d.one((0.1, 0.5))})", f"{v.name} + bb.random.normal({shape}, dtype=bb.{dtype})"),
        *(f"bb.random.uniform({shape}, dtype=bb.{dtype}) * {v.name}", f"bb.random.normal({shape}, dtype=bb.{dtype})"),
        f"bb.where(bb.random.bernoulli({shape}, 0.3), {v.name}, 0.0)",
    )
    return str(d.one(texts))


def loss(d: Draw) -> str | None:
    v = d.array(2, 5000)
    kind = d.rng.randrange(4)
    if not v.size:
        return None
    if kind == 0:
        target = d.new(v.shape[:1], "int64", v.shape[1]).name
        options = f"label_smoothing={d.one((0.0, 0.0, 0.1))}, reduction={d.one(('mean', 'none'))!r}"
        return f"F.cross_entropy({v.name}, {target}, {options})"
    other = d.of(v.shape, v.dtype).name
    texts = "F.mse_loss({}, {})", "F.huber_loss({}, {})", "F.binary_cross_entropy_with_logits({}, bb.sigmoid({}))"
    return str(texts[kind - 1]).format(v.name, other)


def branched(d: Draw) -> str | None:
    """A branch on shapes, a checkpoint, a conversion, a derivative or ``vmap`` inside the program."""
    v = d.any(lambda v: 0 < v.size < 5000)
    if v is None:
        return None
    name, kind = v.name, d.rng.randrange(6)
    if kind == 0:
        return f"{name} * 2.0 if {name}.ndim > 1 and {name}.shape[0] > 2 else bb.sum({name}) - {name}"
    if kind == 1:
        return f"bb.checkpoint(lambda a: bb.tanh(a * a) * a + 0.5)({name})"
    if kind == 2:
        return f"bb.astype({name}, bb.{d.one(('float32', 'float64', 'float64', 'float16'))})"
    if kind == 3:
        return f"bb.grad(lambda a: bb.sum(bb.tanh(a) * a * a))({name})"
    if kind == 4 and v.shape:
        return f"bb.vmap(lambda a: bb.tanh(a) / (1.0 + bb.sum(a * a)))({name})"
    return f"bb.jvp(lambda a: bb.sin(a) * a, ({name},), (bb.cos({name}),))[1]"


def whole(d: Draw) -> str | None:
    """Integer arithmetic."""
    v = d.any(kind="int")
    if v is None:
        f = d.any(lambda v: bool(v.shape) and v.size > 0)
        return None if f is None else f"bb.astype(bb.floor({f.name} * 3.0), bb.{d.one(('int64', 'int32', 'int8'))})"
    texts = (
        "{0} + {0}",
        "{0} * 2 - 1",
        "{0} % 3",
        "{0} // 2",
        "bb.sum({0})",
        "-{0}",
        "bb.astype({0}, bb.float32) * 0.1",
    )
    return str(d.one(texts)).format(v.name)


_TABLE: tuple[tuple[Callable[[Draw], str | None], int], ...] = (
    *((unary, 14), (binary, 16), (joined, 12), (whole_parts, 4), (sliced, 7), (moved, 10), (gathered, 6)),
    *((scattered, 5), (reduced, 8), (running, 4), (selected, 3), (multiplied, 9), (attention, 1), (normalized, 4)),
    *((convolved, 3), (recurrent, 4), (drawn, 2), (loss, 2), (branched, 3), (whole, 1)),
)
PRODUCTIONS = [make for make, _ in _TABLE]
WEIGHTS = [weight for _, weight in _TABLE]
