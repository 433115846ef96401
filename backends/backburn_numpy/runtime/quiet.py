"""Operations that neither warn nor raise for NaN and infinities, whatever a program has asked Python and NumPy to do.

NumPy's RuntimeWarnings in this package's modules are ignored, which costs nothing. Where a program has since made
errors of all warnings, or has NumPy raise by ``np.seterr``, an operation that raised is repeated under ``np.errstate``;
an ``np.errstate`` around every call would cost more than most calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from inspect import Signature, signature
from typing import Any

import numpy as np

#: The errors that NumPy raises for NaN and infinities where the filters of warnings or ``np.seterr`` ask for them.
RAISED = (RuntimeWarning, FloatingPointError)

#: A decorator for functions that write over their operands, or whose warnings point to NumPy's own modules.
quietly = np.errstate(all="ignore")

REPEATING = """
def {name}{signature}:
    try:
        return _function({arguments})
    except _RAISED:
        return _again(_function, {arguments})
"""


def again(function: Callable[..., Any], *operands: Any) -> Any:
    """``function(*operands)`` without the errors that NumPy has raised for it."""
    with np.errstate(all="ignore"):
        return function(*operands)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, repeated by :func:`again` if it raises one of ``RAISED``.

    The result has the parameters of ``function`` and passes each on, which costs a call 20 ns; ``*operands,
    **attributes`` would cost 65 to 150.
    """
    parameters = signature(function).parameters.values()
    bare = [p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None) for p in parameters]
    name, arguments = function.__name__, ", ".join(p.name for p in parameters)
    text = REPEATING.format(name=name, signature=Signature(bare), arguments=arguments)
    names: dict[str, Any] = {"_function": function, "_again": again, "_RAISED": RAISED}
    exec(compile(text, f"<backburn_numpy.{name}>", "exec"), names)
    names[name].__defaults__ = tuple(p.default for p in parameters if p.default is not p.empty)
    return update_wrapper(names[name], function)
