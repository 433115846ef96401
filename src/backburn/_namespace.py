"""Everything that ``backburn`` offers at the top level.

``import backburn`` is lazy: it loads this module on the first access to a name. Every function of the modules in
``_FAMILIES`` is public unless its name begins with an underscore.
"""

# pyright: reportGeneralTypeIssues=false
# ruff: noqa: I001, F403 - imported names are public: `as` tells type checkers so.

import importlib as _importlib
import inspect as _inspect
import typing as _typing

from backburn.autodiff import Autodiff as Autodiff, Forward as Forward, Gradients as Gradients
from backburn.autodiff.anomaly import detect_anomaly as detect_anomaly
from backburn.backend import (
    AutodiffBackend as AutodiffBackend, Backend as Backend, list_backends as list_backends,
    list_decorators as list_decorators, load_backend as load_backend, register_backend as register_backend,
    register_decorator as register_decorator,
)  # fmt: skip
from backburn.backend.user_operations import implement as implement
from backburn.base.dtypes import (
    DType as DType, QuantizedDType as QuantizedDType, bfloat16 as bfloat16, complex64 as complex64,
    complex128 as complex128, float16 as float16, float32 as float32,
    float64 as float64, int8 as int8, int16 as int16, int32 as int32, int64 as int64, qint8 as qint8, uint8 as uint8,
    uint16 as uint16, uint32 as uint32, uint64 as uint64,
)  # fmt: skip
from backburn.base.dtypes import bool_ as _bool
from backburn.base.errors import BackburnError as BackburnError
from backburn.base.threads import set_num_threads as set_num_threads
from backburn.ops.rules.gradients import gradient_rule as gradient_rule
from backburn.tensor import fft as fft, fourier as fourier, random as random
from backburn.tensor.activations import gelu as gelu, relu as relu, sigmoid as sigmoid, silu as silu
from backburn.tensor.classes import (
    BoolTensor as BoolTensor, ComplexTensor as ComplexTensor, FloatTensor as FloatTensor, IntTensor as IntTensor,
    QuantizedTensor as QuantizedTensor, Tensor as Tensor,
)  # fmt: skip
from backburn.tensor.core.defaults import (
    default_backend as default_backend, default_dtype as default_dtype, no_grad as no_grad, use_backend as use_backend,
    use_dtype as use_dtype,
)  # fmt: skip
from backburn.tensor.core.host import asarray as asarray, from_dlpack as from_dlpack, from_inner as from_inner, to as to
from backburn.tensor.core.print_options import set_printoptions as set_printoptions
from backburn.tensor.core.user_operations import operation as operation
from backburn.tensor.einsum import einsum as einsum
from backburn.tensor.inspection import (
    broadcast_shapes as broadcast_shapes, can_cast as can_cast, finfo as finfo, iinfo as iinfo, isdtype as isdtype,
    result_type as result_type,
)  # fmt: skip
from backburn.tensor.linalg import namespace as _linalg
from backburn.tensor.linalg.products import (
    matmul as matmul, matrix_transpose as matrix_transpose, tensordot as tensordot, vecdot as vecdot,
)  # fmt: skip
from backburn.tensor.linalg.statistics import (
    convolve as convolve, corrcoef as corrcoef, correlate as correlate, cov as cov, kron as kron, vander as vander,
)  # fmt: skip
from backburn.tensor.normalization import log_softmax as log_softmax, softmax as softmax
from backburn.tensor.quantized import (
    fake_quantize as fake_quantize, quantized_linear as quantized_linear, quantized_matmul as quantized_matmul,
)  # fmt: skip
from backburn.tensor.standard import (
    __array_namespace_info__ as __array_namespace_info__, e as e, inf as inf, nan as nan, newaxis as newaxis, pi as pi,
)  # fmt: skip
from backburn.transforms import (
    capture as capture, check_grads as check_grads, checkpoint as checkpoint, custom_vjp as custom_vjp, grad as grad,
    hessian as hessian, hvp as hvp, jacobian as jacobian, jvp as jvp, linearize as linearize, stop_gradient as
    stop_gradient, value_and_grad as value_and_grad, vjp as vjp, vmap as vmap,
)  # fmt: skip

bool = _bool
linalg = _linalg

#: Modules of :mod:`backburn.tensor` whose functions are all public.
_FAMILIES = (
    "arithmetic", "complex_numbers", "creation", "elementwise", "index", "logic", "missing_values", "rearrange",
    "reduce", "scan", "selection", "sets", "shape", "sort", "special",
)  # fmt: skip

if _typing.TYPE_CHECKING:
    from backburn.tensor.arithmetic import *
    from backburn.tensor.complex_numbers import *
    from backburn.tensor.creation import *
    from backburn.tensor.elementwise import *
    from backburn.tensor.index import *
    from backburn.tensor.logic import *
    from backburn.tensor.missing_values import *
    from backburn.tensor.rearrange import *
    from backburn.tensor.reduce import *
    from backburn.tensor.scan import *
    from backburn.tensor.selection import *
    from backburn.tensor.sets import *
    from backburn.tensor.shape import *
    from backburn.tensor.sort import *
    from backburn.tensor.special import *
else:
    for _family in _FAMILIES:
        _module = _importlib.import_module(f"backburn.tensor.{_family}")
        for _name, _value in vars(_module).items():
            if _inspect.isfunction(_value) and _value.__module__ == _module.__name__ and not _name.startswith("_"):
                globals()[_name] = _value

    __all__ = sorted(name for name in globals() if not name.startswith("_") or name == "__array_namespace_info__")
