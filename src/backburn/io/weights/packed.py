"""Quantized weights that a source holds in several arrays: those of backburn's own files, of GPTQ and of AWQ.

GPTQ and AWQ (Frantar et al. (2022), *GPTQ*, arXiv:2210.17323; Lin et al. (2023), *AWQ*, arXiv:2306.00978) store a
weight of a linear layer ``x`` as ``x.qweight`` (unsigned integers), and ``x.qzeros`` and ``x.scales``: a zero point and
a float16 step for each group of neighbouring inputs. 32-bit integers hold several values or zero points each. Less half
of the range, these equal an affine scheme of backburn, bit for bit. GPTQ packs along the inputs, lowest bits first; AWQ
along the outputs, eight at a time in the order of :data:`AWQ_ORDER`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import QuantizedDType
from backburn.base.errors import BackburnError, FileFormatError
from backburn.base.foreign import quoted
from backburn.io.quantized import Parts, check_types, check_values, part_names, scheme_and_shape
from backburn.io.weights.stored import Stored, nothing

#: The outputs of the eight numbers in an integer of AWQ, lowest bits first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_WORD = 32


# ---- backburn's own files ----


def joined(where: str, tensors: Mapping[str, Stored], schemes: Mapping[str, Any]) -> dict[str, Stored]:
    """The tensors of a file, with the parts of those in ``schemes`` joined.

    Raises :class:`FileFormatError` for parts that are missing, or do not fit the scheme.
    """
    found = dict(tensors)
    for name, about in schemes.items():
        parts = [found.pop(part, None) for part in part_names(name)]
        try:
            scheme, shape = scheme_and_shape(about)
            if parts[0] is None or parts[1] is None:
                raise FileFormatError("its values or its steps are missing")
            check_types([None if x is None else (x.shape, x.dtype) for x in parts], scheme, shape)
        except (BackburnError, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{where}: the quantized tensor {quoted(name)} is damaged ({error})") from error
        read = partial(_read, [x for x in parts if x is not None])
        check = partial(_check, where, name, [x for x in parts if x is not None], scheme)
        found[name] = Stored(
            shape, scheme.name, nothing, where, check, kind="quantized", scheme=scheme.name, parts=read
        )
    return found


def _read(parts: list[Stored]) -> Parts:
    values, scale, *zero = (x.read() for x in parts)
    return values, scale, zero[0] if zero else None


def _check(where: str, name: str, parts: list[Stored], scheme: QuantizedDType) -> None:
    for part in parts:
        part.check()
    try:
        check_values(_read(parts), scheme)
    except FileFormatError as error:
        raise FileFormatError(f"{where}: the quantized tensor {quoted(name)} is damaged ({error})") from error


# ---- GPTQ and AWQ ----


def unpacked(
    where: str, tensors: Mapping[str, Stored], zeros_less_one: Callable[[], bool] = lambda: True
) -> dict[str, Stored]:
    """The tensors, with those of GPTQ and AWQ under the names of the weights that they stand for, ``x.weight``.

    ``zeros_less_one`` says whether GPTQ's zero points are stored minus 1, as in all formats but ``gptq_v2``. Raises
    :class:`FileFormatError` for arrays that are not a packed weight, and weights whose inputs are in another order.
    """
    found = dict(tensors)
    for name in [name for name in tensors if name.endswith("qweight")]:
        start = name.removesuffix("qweight")
        if (start and not start.endswith(".")) or f"{start}qzeros" not in found or f"{start}scales" not in found:
            continue
        parts = [found.pop(f"{start}{part}", None) for part in ("qweight", "qzeros", "scales", "g_idx")]
        weight = f"{start}weight"
        if weight in found:
            raise FileFormatError(f"{where}: {quoted(name)} and {quoted(weight)} are one weight")
        found[weight] = _packed(where, weight, parts, zeros_less_one()).stored(where)
    return found


@dataclass(frozen=True)
class _Packed:
    """A weight (outputs, inputs) of GPTQ or AWQ."""

    name: str
    qweight: Stored
    qzeros: Stored
    scales: Stored
    g_idx: Stored | None
    bits: int
    is_awq: bool
    shape: tuple[int, int]
    #: The difference between a zero point and its stored value.
    less: int

    @property
    def group(self) -> int:
        """The number of inputs that share a step."""
        return self.shape[1] // self.scales.shape[0]

    def stored(self, where: str) -> Stored:
        """The tensor of a source."""
        storage = {8: "uint8", 4: "int4", 2: "int2"}[self.bits]
        scheme = QuantizedDType(storage, self.scales.dtype, "affine", "block", block=self.group)
        check = partial(self.check, where)
        return Stored(
            self.shape, f"{'AWQ' if self.is_awq else 'GPTQ'} in {self.bits} bits", self.values, where, check,
            kind="float", scheme=scheme.name, parts=self.parts,
            check_parts=partial(self.check_parts, where, scheme),
        )  # fmt: skip

    def integers(self) -> NDArray[np.uint8]:
        """The unsigned integers (outputs, inputs)."""
        words = _words(self.qweight)
        numbers = _numbers(words, self.bits, self.is_awq)  # (rows, columns, numbers in a word)
        if self.is_awq:
            return numbers.reshape(len(words), -1).T
        return numbers.transpose(1, 0, 2).reshape(words.shape[1], -1)

    def zeros(self) -> NDArray[np.int16]:
        """The zero points (outputs, groups)."""
        numbers = _numbers(_words(self.qzeros), self.bits, self.is_awq)
        return numbers.reshape(len(numbers), -1).T.astype(np.int16) + self.less

    def values(self) -> NDArray[np.float32]:
        """The weight in float32."""
        steps: Any = np.repeat(self.scales.read().T.astype(np.float32), self.group, axis=1)
        multiples: Any = self.integers().astype(np.int16) - np.repeat(self.zeros(), self.group, axis=1)
        with np.errstate(all="ignore"):  # steps may be infinite or NaN
            product: NDArray[np.float32] = steps * multiples
        return product

    def parts(self) -> Parts:
        """The parts of a quantized tensor: values and zero points minus half of the range, values packed in rows."""
        half = 0 if self.bits == 8 else 1 << (self.bits - 1)
        zero = (self.zeros() - half).astype(np.uint8 if self.bits == 8 else np.int8)
        scale = np.ascontiguousarray(self.scales.read().T)
        if self.bits == 8:
            return np.ascontiguousarray(self.integers()), scale, zero
        each = 8 // self.bits
        numbers = self.integers().reshape(self.shape[0], -1, each) ^ half
        packed = numbers[..., 0].copy()
        for i in range(1, each):
            packed |= numbers[..., i] << (i * self.bits)
        return packed, scale, np.ascontiguousarray(zero)

    def check(self, where: str) -> None:
        """Raise unless the parts can be read, and groups consist of neighbouring inputs."""
        for part in (self.qweight, self.qzeros, self.scales):
            part.check()
        if self.g_idx is None:
            return
        self.g_idx.check()
        if not np.array_equal(self.g_idx.read(), np.arange(self.shape[1]) // self.group):
            raise FileFormatError(
                f"{where}: {self.name}: its g_idx is not ascending by groups of {self.group}: the weight was quantized "
                "with inputs in another order (desc_act), which no scheme here has"
            )

    def check_parts(self, where: str, scheme: QuantizedDType) -> None:
        """Raise for zero points beyond the range, and steps that are not positive."""
        if self.zeros().max(initial=0) >= 1 << self.bits:
            raise FileFormatError(
                f"{where}: {self.name}: a zero point is {1 << self.bits}, beyond the integers of {self.bits} bits, "
                "which no scheme here has: load it into a float layer"
            )
        scale = self.scales.read()
        try:
            check_values((np.empty(0, scheme.stored.dtype), scale, None), scheme)
        except FileFormatError as error:
            raise FileFormatError(f"{where}: {self.name}: {error}: load it into a float layer") from error


def _packed(where: str, name: str, parts: list[Stored | None], zeros_less_one: bool) -> _Packed:
    """The weight of these parts, whose shapes show how it is packed."""
    qweight, qzeros, scales, g_idx = parts
    assert qweight is not None
    assert qzeros is not None
    assert scales is not None
    shapes = f"qweight {list(qweight.shape)}, qzeros {list(qzeros.shape)}, scales {list(scales.shape)}"

    def wrong(why: str) -> FileFormatError:
        return FileFormatError(f"{where}: {name}, of GPTQ or AWQ: {why} ({shapes})")

    for part, dtype in ((qweight, "int32"), (qzeros, "int32")):
        if part.dtype != dtype or len(part.shape) != 2:
            raise wrong(f"qweight and qzeros are matrices of int32, not {part.dtype}")
    if scales.dtype not in ("float16", "bfloat16", "float32") or len(scales.shape) != 2 or not scales.shape[0]:
        raise wrong(f"its scales are a matrix of floats, not {scales.dtype}")
    groups, outputs = scales.shape
    if qzeros.shape[0] != groups or not outputs or qzeros.shape[1] * _WORD % outputs:
        raise wrong("its zero points do not fit its scales")
    bits = qzeros.shape[1] * _WORD // outputs
    if bits not in (2, 4, 8):
        raise wrong(f"{bits} bits are not read, 2, 4 and 8 are")
    is_awq = qweight.shape[1] != outputs
    if is_awq and (bits != 4 or qweight.shape[1] * _WORD != outputs * bits):
        raise wrong("its qweight does not fit its scales")
    inputs = qweight.shape[0] if is_awq else qweight.shape[0] * _WORD // bits
    if not inputs or inputs % groups:
        raise wrong(f"{inputs} inputs do not divide into {groups} groups")
    if g_idx is not None and (g_idx.kind != "int" or g_idx.shape != (inputs,)):
        raise wrong(f"its g_idx is {g_idx.dtype}{list(g_idx.shape)}, and not {inputs} integers")
    if inputs // groups * bits % 8:
        raise wrong(f"groups of {inputs // groups} inputs do not fill bytes")
    less = int(zeros_less_one and not is_awq)
    return _Packed(name, qweight, qzeros, scales, g_idx, bits, is_awq, (outputs, inputs), less)


def _words(stored: Stored) -> NDArray[np.uint32]:
    return np.ascontiguousarray(np.asarray(stored.read()), np.dtype("<i4")).view("<u4")


def _numbers(words: NDArray[np.uint32], bits: int, is_awq: bool) -> NDArray[np.uint8]:
    """The numbers in the words of a matrix, along a new last axis."""
    raw = words.view(np.uint8).reshape(*words.shape, 4)
    each = 8 // bits
    numbers = np.empty((*words.shape, 4 * each), np.uint8)
    for i in range(each):
        np.bitwise_and(raw >> (i * bits), (1 << bits) - 1, out=numbers[..., i::each])
    if not is_awq:
        return numbers
    ordered = np.empty_like(numbers)
    ordered[..., AWQ_ORDER] = numbers
    return ordered
