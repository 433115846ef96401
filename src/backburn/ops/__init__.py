"""Operations: the declaration of each, with its default body, gradient rule and tangents, one module a family."""

from typing import Protocol

from backburn.ops.activations import Activations
from backburn.ops.arithmetic import Arithmetic
from backburn.ops.attention import Attention
from backburn.ops.complex_numbers import ComplexNumbers
from backburn.ops.conv import Conv
from backburn.ops.creation import Creation
from backburn.ops.ctc import CTC
from backburn.ops.decompositions import Decompositions
from backburn.ops.elementwise import Elementwise
from backburn.ops.fft import FFT
from backburn.ops.index import Index
from backburn.ops.linalg import Linalg
from backburn.ops.logic import Logic
from backburn.ops.losses import Losses
from backburn.ops.normalization import Normalization
from backburn.ops.optimizer_steps import OptimizerSteps
from backburn.ops.pool import Pool
from backburn.ops.primitives import Primitives as Primitives
from backburn.ops.quantized_products import QuantizedProducts
from backburn.ops.random import Random
from backburn.ops.recurrent import Recurrent
from backburn.ops.reduce import Reduce
from backburn.ops.resample import Resample
from backburn.ops.scan import Scan
from backburn.ops.selection import Selection
from backburn.ops.sets import Sets
from backburn.ops.shape import ShapeOperations
from backburn.ops.sort import Sort
from backburn.ops.types import B, F, I, Q


class Operations(
    Creation[F, I, B, Q],
    Arithmetic[F, I, B, Q],
    Elementwise[F, I, B, Q],
    ComplexNumbers[F, I, B, Q],
    Logic[F, I, B, Q],
    Selection[F, I, B, Q],
    Reduce[F, I, B, Q],
    Scan[F, I, B, Q],
    Sort[F, I, B, Q],
    Sets[F, I, B, Q],
    ShapeOperations[F, I, B, Q],
    Index[F, I, B, Q],
    Linalg[F, I, B, Q],
    QuantizedProducts[F, I, B, Q],
    Conv[F, I, B, Q],
    Pool[F, I, B, Q],
    Resample[F, I, B, Q],
    Recurrent[F, I, B, Q],
    Attention[F, I, B, Q],
    CTC[F, I, B, Q],
    Decompositions[F, I, B, Q],
    FFT[F, I, B, Q],
    Normalization[F, I, B, Q],
    Activations[F, I, B, Q],
    Losses[F, I, B, Q],
    Random[F, I, B, Q],
    OptimizerSteps[F, I, B, Q],
    Protocol[F, I, B, Q],
):
    """Every operation of the contract: a function of primitives, with a default body unless it is required."""
