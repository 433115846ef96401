"""How tensors are printed."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import ArgumentError

#: Options that were set, and two defaults; for all others, NumPy's options apply.
OPTIONS: dict[str, Any] = {"threshold": 1000, "edgeitems": 3}


def set_printoptions(
    *,
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    suppress: bool | None = None,
) -> None:
    """Set how tensors are printed, for the whole process; options that are None or omitted are unchanged.

    ``precision`` is the number of digits after the point (8), ``threshold`` the number of elements above which tensors
    are summarized (1,000) by ``edgeitems`` elements at each end of an axis (3), ``linewidth`` the length of lines (75);
    ``suppress`` prints numbers near 0 as 0, never in scientific notation (False). Names and meanings are those of
    ``numpy.set_printoptions``, whose precision, line width and suppression apply until they are set here. Raises
    :class:`ArgumentError` for values of other types.

        >>> import backburn as bb
        >>> bb.set_printoptions(precision=3)
        >>> bb.asarray([3.14159265], backend="numpy")
        Tensor([3.142], dtype=float32, backend=numpy)
        >>> bb.set_printoptions(precision=8)
    """
    given: dict[str, Any] = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems}
    given["linewidth"] = linewidth
    least = {"precision": 0, "threshold": 0, "edgeitems": 1, "linewidth": 1}
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least[name]):
            raise ArgumentError(f"set_printoptions: {name} is an integer from {least[name]} on, not {value!r}")
    numbers_near_zero: object = suppress
    if numbers_near_zero is not None and not isinstance(numbers_near_zero, bool):
        raise ArgumentError(f"set_printoptions: suppress is True or False, not {suppress!r}")
    OPTIONS.update({name: value for name, value in {**given, "suppress": suppress}.items() if value is not None})
