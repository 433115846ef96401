"""``backburn.linalg``: linear algebra, with all functions of the Array API's extension.

It also has ``lu``, ``triangular_solve``, ``cholesky_solve``, ``lstsq``, ``kron``, ``cdist`` and ``matrix_exp``.
Matrices are in the last two axes. Raises :class:`LinearAlgebraError`, a ValueError, for a matrix that has no result.
"""

from typing import TYPE_CHECKING

from backburn.base.errors import LinearAlgebraError, SingularMatrixError
from backburn.hints import lookups
from backburn.tensor.linalg.decompositions import (
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    lu,
    qr,
    svd,
    svdvals,
)
from backburn.tensor.linalg.matrices import det, matrix_exp, matrix_norm, matrix_power, slogdet
from backburn.tensor.linalg.products import matmul, matrix_transpose, tensordot, vecdot
from backburn.tensor.linalg.solve import cholesky_solve, inv, lstsq, matrix_rank, pinv, solve, triangular_solve
from backburn.tensor.linalg.statistics import cdist, cross, kron, outer
from backburn.tensor.rearrange import diagonal, trace
from backburn.tensor.reduce import vector_norm

__all__ = [
    "LinearAlgebraError", "SingularMatrixError", "cdist", "cholesky", "cholesky_solve", "cross", "det", "diagonal",
    "eig", "eigh", "eigvals", "eigvalsh", "inv", "kron", "lstsq", "lu", "matmul", "matrix_exp", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "tensordot", "trace", "triangular_solve", "vecdot", "vector_norm",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.linalg", __all__)
