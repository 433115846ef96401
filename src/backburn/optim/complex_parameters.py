"""How optimizers represent complex parameters: real and imaginary parts stacked along a first axis."""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import ComplexDType, DType
from backburn.tensor.core.dispatch import upcast_half_dtype


def dtype_of_steps(dtype: DType) -> DType:
    """The dtype in which a parameter is updated and its state kept: at least float32; the dtype of complex parts."""
    return dtype.part if isinstance(dtype, ComplexDType) else upcast_half_dtype(dtype)


def shape_of_steps(x: Any) -> tuple[int, ...]:
    """The shape in which a parameter is updated: (2, *shape) for a complex one."""
    return (2, *x.shape) if isinstance(x.dtype, ComplexDType) else tuple(x.shape)


def as_real(k: Any, x: Any) -> Any:
    """A complex primitive as its parts."""
    return k.stack([k.real(x), k.imag(x)], 0)


def as_complex(k: Any, x: Any) -> Any:
    """The complex primitive with these parts."""
    return k.complex(k.select(x, 0, 0), k.select(x, 0, 1))
