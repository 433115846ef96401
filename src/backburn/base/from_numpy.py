"""NumPy's, SciPy's and JAX's functions that are a line of others here, by what to write instead.

``x`` and ``y`` are the operands in their order. Those of one name with a tensor's method are told there, too.
"""

from __future__ import annotations

_OF_NUMBERS = "x[~bb.isnan(x)]"

FORMULAS = {
    "argpartition": "bb.argsort(x)",
    "array_equal": "x.shape == y.shape and bool(bb.all(x == y))",
    "convolve": "bb.nn.functional.conv(x[None, None], bb.flip(y)[None, None], padding=y.size - 1)[0, 0]",
    "correlate": "bb.nn.functional.conv(x[None, None], y[None, None])[0, 0]",
    "degrees": "x * (180 / bb.pi)",
    "digitize": "bb.searchsorted(y, x, side='right')",
    "dsplit": "bb.chunk(x, n, axis=2)",
    "ediff1d": "bb.diff(bb.flatten(x))",
    "expit": "bb.sigmoid(x)",
    "fill_diagonal": "bb.where(bb.eye(*x.shape, dtype='bool'), value, x)",
    "flatnonzero": "bb.nonzero(bb.flatten(x))[0]",
    "gammaln": "bb.lgamma(x)",
    "hsplit": "bb.chunk(x, n, axis=1)",
    "hstack": "bb.concat([x, y], 1) of matrices, bb.concat([x, y]) of vectors",
    "identity": "bb.eye(n)",
    "in1d": "bb.isin(x, y)",
    "intersect1d": "bb.unique_values(x[bb.isin(x, y)])",
    "modf": "bb.frac(x), bb.trunc(x)",
    "nan_to_num": "bb.clip(bb.where(bb.isnan(x), 0.0, x), bb.finfo(x.dtype).min, bb.finfo(x.dtype).max)",
    "nanargmax": "bb.argmax(bb.where(bb.isnan(x), -bb.inf, x))",
    "nanargmin": "bb.argmin(bb.where(bb.isnan(x), bb.inf, x))",
    "nanmax": f"bb.max({_OF_NUMBERS})",
    "nanmean": f"bb.mean({_OF_NUMBERS})",
    "nanmedian": f"bb.median({_OF_NUMBERS})",
    "nanmin": f"bb.min({_OF_NUMBERS})",
    "nanpercentile": f"bb.quantile({_OF_NUMBERS}, percent / 100)",
    "nanprod": f"bb.prod({_OF_NUMBERS})",
    "nanquantile": f"bb.quantile({_OF_NUMBERS}, q)",
    "nanstd": f"bb.std({_OF_NUMBERS})",
    "nansum": "bb.sum(bb.where(bb.isnan(x), 0.0, x))",
    "nanvar": f"bb.var({_OF_NUMBERS})",
    "ndtr": "bb.erfc(-x / 2**0.5) / 2",
    "partition": "bb.sort(x)",
    "put_along_axis": "bb.scatter(x, indices, y, axis=axis)",
    "radians": "x * (bb.pi / 180)",
    "segment_sum": "bb.index_add(bb.zeros((n, *x.shape[1:]), dtype=x.dtype), ids, x, axis=0)",
    "setdiff1d": "bb.unique_values(x[~bb.isin(x, y)])",
    "union1d": "bb.unique_values(bb.concat([x, y]))",
    "vander": "x[:, None] ** bb.arange(x.shape[0] - 1, -1, -1)",
    "vsplit": "bb.chunk(x, n)",
    "vstack": "bb.concat([x, y]) of matrices, bb.stack([x, y]) of vectors",
}

#: Loops of JAX, and random numbers by others.
LINES = {
    "copy": "nothing: tensors are never changed",
    "exponential": "-bb.log1p(-bb.random.uniform(shape))",
    "fori_loop": "for i in range(low, high), a loop of Python",
    "gumbel": "-bb.log(-bb.log(bb.random.uniform(shape)))",
    "lax": "loops and conditions of Python",
    "multivariate_normal": "mean + bb.random.normal((n, mean.size)) @ bb.linalg.cholesky(cov).mT",
    "scan": "a loop of Python, and bb.stack(outputs)",
    "shuffle": "bb.random.permutation(x)",
    "standard_normal": "bb.random.normal(shape)",
    "truncated_normal": "bb.nn.init.trunc_normal(shape)",
    "while_loop": "while condition, a loop of Python",
}
