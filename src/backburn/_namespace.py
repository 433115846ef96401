"""Everything that ``backburn`` offers at the top level: one import line for each module of `tensor`.

``import backburn`` is lazy: it loads this module when the first name is asked for.
"""

# ruff: noqa: I001 - names stand on as few lines as they need. `python tools/write_all.py` writes `__all__`.


from backburn.autodiff import Autodiff, Forward, Gradients, gradient
from backburn.autodiff.anomaly import detect_anomaly
from backburn.backend.custom import implement
from backburn.backend import (
    AutodiffBackend, Backend, list_backends, list_decorators, load_backend, register_backend, register_decorator,
)  # fmt: skip
from backburn.base.dtypes import (
    DType, QuantizedDType, bfloat16, float16, float32, float64, int8, int16, int32, int64, qint8, uint8, uint16, uint32,
    uint64,
)  # fmt: skip
from backburn.base.dtypes import bool_ as bool
from backburn.base.errors import BackburnError
from backburn.base.threads import set_num_threads
from backburn.tensor.arithmetic import (
    abs, add, clip, conj, divide, divmod, floor_divide, fmod, imag, lerp, maximum, minimum, multiply, negative,
    heaviside, positive, real, reciprocal, remainder, sign, square, subtract,
)  # fmt: skip
from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, QuantizedTensor, Tensor
from backburn.tensor.custom import operation
from backburn.tensor.defaults import default_backend, default_dtype, no_grad, use_backend, use_dtype
from backburn.tensor.functions import (
    acos, acosh, asin, asinh, atan, atan2, atanh, ceil, cos, cosh, exp, exp2, expm1, floor, frac, hypot, log, log1p,
    log2, log10, logaddexp, pow, round, rsqrt, sin, sinh, sqrt, tan, tanh, trunc,
)  # fmt: skip
from backburn.tensor import random
from backburn.tensor.choice import mask_fill, masked_select, tril, triu, where
from backburn.tensor.create import (
    arange, astype, dequantize, empty, empty_like, eye, full, full_like, linspace, ones, ones_like, quantize, zeros,
    zeros_like,
)  # fmt: skip
from backburn.tensor.host import asarray, from_dlpack, from_inner, to
from backburn.tensor.inspection import broadcast_shapes, can_cast, finfo, iinfo, isdtype, result_type
from backburn.tensor.moving import (
    diag, diagonal, flip, overlap_add, pad, repeat, roll, rot90, sliding_window, tile, trace,
)  # fmt: skip
from backburn.tensor.shape import (
    atleast_1d, atleast_2d, atleast_3d, broadcast_arrays, broadcast_to, chunk, concat, expand_dims, flatten, meshgrid,
    moveaxis, permute_dims, reshape, split, squeeze, stack, swapaxes, transpose,
    unstack,
)  # fmt: skip
from backburn.tensor.logic import (
    allclose, bitwise_and, bitwise_invert, bitwise_left_shift, bitwise_or, bitwise_right_shift, bitwise_xor,
    copysign, equal, greater, greater_equal, isclose, isfinite, isinf, isnan, less, less_equal, logical_and,
    logical_not, logical_or, logical_xor, nextafter, not_equal, signbit,
)  # fmt: skip
from backburn.tensor.reduce import (
    all, any, argmax, argmin, average, count_nonzero, logsumexp, max, max_abs, max_with_indices, mean, min,
    min_with_indices, prod, ptp, std, sum, var, vector_norm,
)  # fmt: skip
from backburn.tensor.missing_values import (
    nan_to_num, nanargmax, nanargmin, nanmax, nanmean, nanmedian, nanmin, nanprod, nanquantile, nanstd, nansum, nanvar,
)  # fmt: skip
from backburn.tensor.scan import (
    cummax, cummin, cumulative_prod, cumulative_sum, diff, logcumsumexp, trapezoid, unwrap,
)  # fmt: skip
from backburn.tensor.sort import (
    argsort, interp, kthvalue, median, median_with_indices, mode, quantile, searchsorted, sort, sort_with_indices, topk,
)  # fmt: skip
from backburn.tensor.special import digamma, erf, erfc, erfinv, i0, i1, lgamma, polygamma, sinc
from backburn.tensor.activate import gelu, relu, sigmoid, silu
from backburn.tensor.index import (
    gather_nd, index_add, index_copy, nonzero, one_hot, scatter, scatter_nd, take, take_along_axis,
)  # fmt: skip
from backburn.tensor.linalg import matmul, matrix_transpose, tensordot, vecdot
from backburn.tensor import fourier
from backburn.tensor import linalg_namespace as linalg
from backburn.tensor.einsum import einsum
from backburn.tensor.products import convolve, corrcoef, correlate, cov, kron, vander
from backburn.tensor.sets import bincount, histogram, isin, unique_all, unique_counts, unique_inverse, unique_values
from backburn.tensor.normalize import log_softmax, softmax
from backburn.tensor.quantized import fake_quantize, quantized_linear, quantized_matmul
from backburn.transforms import (
    capture, check_grads, checkpoint, custom_vjp, grad, hessian, hvp, jacobian, jvp, linearize, stop_gradient,
    value_and_grad, vjp, vmap,
)  # fmt: skip
from backburn.tensor.standard import __array_namespace_info__, e, inf, nan, newaxis, pi

__all__ = [
    "Autodiff", "AutodiffBackend", "BackburnError", "Backend", "BoolTensor", "DType", "FloatTensor", "Forward",
    "Gradients", "IntTensor", "QuantizedDType", "QuantizedTensor", "Tensor", "__array_namespace_info__", "abs", "acos",
    "acosh", "add", "all", "allclose", "any", "arange", "argmax", "argmin", "argsort", "asarray", "asin", "asinh",
    "astype", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average", "bfloat16", "bincount",
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool",
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "can_cast", "capture", "ceil", "check_grads", "checkpoint",
    "chunk", "clip", "concat", "conj", "convolve", "copysign", "corrcoef", "correlate", "cos", "cosh", "count_nonzero",
    "cov", "cummax", "cummin", "cumulative_prod", "cumulative_sum", "custom_vjp", "default_backend", "default_dtype",
    "dequantize", "detect_anomaly", "diag", "diagonal", "diff", "digamma", "divide", "divmod", "e", "einsum", "empty",
    "empty_like", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expand_dims", "expm1", "eye", "fake_quantize",
    "finfo", "flatten", "flip", "float16", "float32", "float64", "floor", "floor_divide", "fmod", "fourier", "frac",
    "from_dlpack", "from_inner", "full", "full_like", "gather_nd", "gelu", "grad", "gradient", "greater",
    "greater_equal", "heaviside", "hessian", "histogram", "hvp", "hypot", "i0", "i1", "iinfo", "imag", "implement",
    "index_add", "index_copy", "inf", "int16", "int32", "int64", "int8", "interp", "isclose", "isdtype", "isfinite",
    "isin", "isinf", "isnan", "jacobian", "jvp", "kron", "kthvalue", "lerp", "less", "less_equal", "lgamma", "linalg",
    "linearize", "linspace", "list_backends", "list_decorators", "load_backend", "log", "log10", "log1p", "log2",
    "log_softmax", "logaddexp", "logcumsumexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp",
    "mask_fill", "masked_select", "matmul", "matrix_transpose", "max", "max_abs", "max_with_indices", "maximum", "mean",
    "median", "median_with_indices", "meshgrid", "min", "min_with_indices", "minimum", "mode", "moveaxis", "multiply",
    "nan", "nan_to_num", "nanargmax", "nanargmin", "nanmax", "nanmean", "nanmedian", "nanmin", "nanprod", "nanquantile",
    "nanstd", "nansum", "nanvar", "negative", "newaxis", "nextafter", "no_grad", "nonzero", "not_equal", "one_hot",
    "ones", "ones_like", "operation", "overlap_add", "pad", "permute_dims", "pi", "polygamma", "positive", "pow",
    "prod", "ptp", "qint8", "quantile", "quantize", "quantized_linear", "quantized_matmul", "random", "real",
    "reciprocal", "register_backend", "register_decorator", "relu", "remainder", "repeat", "reshape", "result_type",
    "roll", "rot90", "round", "rsqrt", "scatter", "scatter_nd", "searchsorted", "set_num_threads", "sigmoid", "sign",
    "signbit", "silu", "sin", "sinc", "sinh", "sliding_window", "softmax", "sort", "sort_with_indices", "split", "sqrt",
    "square", "squeeze", "stack", "std", "stop_gradient", "subtract", "sum", "swapaxes", "take", "take_along_axis",
    "tan", "tanh", "tensordot", "tile", "to", "topk", "trace", "transpose", "trapezoid", "tril", "triu", "trunc",
    "uint16", "uint32", "uint64", "uint8", "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack",
    "unwrap", "use_backend", "use_dtype", "value_and_grad", "vander", "var", "vecdot", "vector_norm", "vjp", "vmap",
    "where", "zeros", "zeros_like",
]  # fmt: skip
