"""PyTorch's functions that are a line of others here, by what to write instead.

``x``, ``y`` and ``z`` are the operands in their order. Those of one name with a tensor's method are told there, too.
"""

from __future__ import annotations

FORMULAS = {
    "addcdiv": "x + value * y / z",
    "addcmul": "x + value * y * z",
    "addmm": "x + y @ z",
    "addmv": "x + y @ z",
    "addr": "x + bb.linalg.outer(y, z)",
    "aminmax": "bb.min(x), bb.max(x)",
    "baddbmm": "x + y @ z",
    "bitwise_not": "~x",
    "bucketize": "bb.searchsorted(y, x)",
    "cartesian_prod": "bb.stack(bb.meshgrid(x, y, indexing='ij'), axis=-1).reshape((-1, 2))",
    "cdist": "bb.linalg.vector_norm(x[..., :, None, :] - y[..., None, :, :], axis=-1)",
    "clamp_max": "bb.clip(x, max=high)",
    "clamp_min": "bb.clip(x, low)",
    "cond": "s[..., 0] / s[..., -1], with s = bb.linalg.svdvals(x)",
    "diagflat": "bb.diag(bb.flatten(x))",
    "dist": "bb.linalg.vector_norm(x - y)",
    "eig": "bb.linalg.eigh(x) of symmetric matrices: there are no complex dtypes",
    "eigvals": "bb.linalg.eigvalsh(x) of symmetric matrices: there are no complex dtypes",
    "float_power": "bb.astype(x, 'float64') ** y",
    "fmax": "bb.where(bb.isnan(x), y, bb.where(bb.isnan(y), x, bb.maximum(x, y)))",
    "fmin": "bb.where(bb.isnan(x), y, bb.where(bb.isnan(y), x, bb.minimum(x, y)))",
    "heaviside": "bb.where(x == 0, y, bb.where(x > 0, 1.0, 0.0))",
    "histc": "bb.histogram(x, bins=bins, range=(low, high))[0]",
    "index_fill": "x.at[indices].set(value), or x.at[:, indices].set(value) along axis 1",
    "index_put": "x.at[indices].set(values), or add(values)",
    "isneginf": "x == -bb.inf",
    "isposinf": "x == bb.inf",
    "ldexp": "x * bb.exp2(y)",
    "logaddexp2": "bb.log2(bb.exp2(x - m) + bb.exp2(y - m)) + m, with m = bb.maximum(x, y)",
    "logdet": "bb.linalg.slogdet(x).logabsdet",
    "lu_solve": "bb.linalg.solve(x, y)",
    "msort": "bb.sort(x, axis=0)",
    "multi_dot": "x @ y @ z",
    "narrow": "x[start : start + length], or x[:, start : start + length] along axis 1",
    "scatter_reduce": "bb.scatter(x, indices, y, axis=axis, mode='add'); others are 'mul', 'min', 'max' and 'mean'",
    "select": "x[i], or x[:, i] along axis 1",
    "select_scatter": "x.at[i].set(y), or x.at[:, i].set(y) along axis 1",
    "short": "bb.int16",
    "slice_scatter": "x.at[start:stop].set(y), or x.at[:, start:stop].set(y) along axis 1",
    "t": "x.T",
    "trapezoid": "bb.sum((y[1:] + y[:-1]) / 2 * bb.diff(x))",
    "trapz": "bb.sum((y[1:] + y[:-1]) / 2 * bb.diff(x))",
    "tril_indices": "bb.nonzero(bb.tril(bb.ones((n, m))))",
    "triu_indices": "bb.nonzero(bb.triu(bb.ones((n, m))))",
    "unique_consecutive": "x[bb.concat([bb.ones(1, dtype='bool'), x[1:] != x[:-1]])]",
    "xlogy": "bb.where(x == 0, 0.0, x * bb.log(bb.where(x == 0, 1.0, y)))",
}

#: Those of layers.
LAYERS = {
    "channel_shuffle": "x.reshape((n, groups, c // groups, h, w)).swapaxes(1, 2).reshape((n, c, h, w))",
    "upsample_bilinear": "bb.nn.functional.interpolate(x, size, mode='linear', align_corners=True)",
    "upsample_nearest": "bb.nn.functional.interpolate(x, size)",
}

#: Functions here that are methods there.
ONLY_FUNCTIONS = {
    **{name: f"bb.{name}(x)" for name in ("bincount", "conj", "corrcoef", "cov", "diag", "gelu", "histogram", "silu")},
    **{name: f"bb.{name}(x)" for name in ("nan_to_num", "nanmean", "nansum")},
    **{name: f"bb.linalg.{name}(x)" for name in ("cholesky", "det", "lu", "qr", "slogdet", "svd")},
    **{name: f"bb.{name}(x, y)" for name in ("floor_divide", "isin", "kron", "tensordot")},
    "bernoulli": "bb.random.bernoulli(p=x)",
    "byte": "x.astype('uint8')",
    "char": "x.astype('int8')",
    "expand_as": "x.broadcast_to(y.shape)",
    "element_size": "x.nbytes // x.size",
    "is_floating_point": "x.dtype.kind == 'float'",
    "mv": "x @ y",
    "new_full": "bb.full(shape, value, dtype=x.dtype, backend=x.backend)",
    "new_tensor": "bb.asarray(data, dtype=x.dtype, backend=x.backend)",
    "repeat_interleave": "x.repeat(n)",
    "reshape_as": "x.reshape(y.shape)",
    "short": "x.astype('int16')",
    "type_as": "x.astype(y.dtype)",
    "unflatten": "x.reshape(shape)",
    "view_as": "x.reshape(y.shape)",
    "where": "bb.where(condition, x, y)",
}
