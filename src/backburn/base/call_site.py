"""The line of the user's program, and the public function called there, that led to an error, a check or a warning.

Public functions call one another and leave most checks to the innermost, but an error should name the function that the
user called. Passing names down, or entering a context for each call, would cost every call; walking up the stack costs
only those that fail.

Only :func:`frames` decides which frames belong to the user's program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

#: Modules and packages whose frames are not the user's; the registry adds those of backends.
OURS = {"backburn"}
#: How file names of generated code begin; its namespace may lack a module name.
GENERATED = "<backburn"
#: Paths of Python's standard library, which calls back (``contextlib``, ``copy``, ``threading``).
_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
#: Internal packages: if no frame is the user's, the innermost one outside these packages counts as the program.
_LAYERS = tuple(
    f"backburn.{name}"
    for name in ("autodiff", "backend", "base", "batching", "communicators", "decorators", "ops", "tensor")
)

#: The modules whose functions users call, and what users write for them.
NAMESPACES = {
    "backburn._namespace": "bb",
    "backburn.nn.functional": "bb.nn.functional",
    "backburn.tensor.linalg.namespace": "bb.linalg",
    "backburn.tensor.fft": "bb.fft",
    "backburn.tensor.fourier": "bb.fourier",
    "backburn.tensor.random": "bb.random",
    "backburn.nn": "bb.nn",
    "backburn.nn.init": "bb.nn.init",
    "backburn.optim": "bb.optim",
}
#: The functions that operators call.
_OPERATORS = {
    "__add__": "add", "__radd__": "add", "__sub__": "subtract", "__rsub__": "subtract", "__mul__": "multiply",
    "__rmul__": "multiply", "__truediv__": "divide", "__rtruediv__": "divide", "__matmul__": "matmul",
    "__rmatmul__": "matmul", "__floordiv__": "floor_divide", "__rfloordiv__": "floor_divide", "__mod__": "remainder",
    "__rmod__": "remainder", "__divmod__": "divmod", "__rdivmod__": "divmod", "__pow__": "pow", "__rpow__": "pow",
    "__eq__": "equal", "__ne__": "not_equal", "__lt__": "less", "__le__": "less_equal", "__gt__": "greater",
    "__ge__": "greater_equal", "__and__": "bitwise_and", "__rand__": "bitwise_and", "__or__": "bitwise_or",
    "__ror__": "bitwise_or", "__xor__": "bitwise_xor", "__rxor__": "bitwise_xor", "__lshift__": "bitwise_left_shift",
    "__rlshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift", "__rrshift__": "bitwise_right_shift",
}  # fmt: skip
_PUBLIC_PACKAGES = ("backburn.tensor.", "backburn.transforms.", "backburn.nn.", "backburn.optim.")


def frames(frame: FrameType | None) -> Iterator[tuple[FrameType, bool]]:
    """The frames from ``frame`` outwards, and whether each is one of the user's program."""
    while frame is not None:
        yield frame, not _is_ours(frame) and not _is_of_python(frame.f_code.co_filename)
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    """Whether code of backburn, of a backend or of a generated function runs in a frame."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    if file.startswith(GENERATED):
        return True
    if module == "__main__":  # ``python -m backburn`` and the console script
        module = "backburn" if os.path.basename(file) == "backburn" else frame.f_globals.get("__package__") or ""
    return module.partition(".")[0] in OURS or any(module == name or module.startswith(f"{name}.") for name in OURS)


def _is_of_python(file: str) -> bool:
    return file.startswith(_LIBRARY) and not any(part in file for part in _INSTALLED)


def user_frame(frame: FrameType | None = None) -> FrameType | None:
    """The innermost frame of the user's program, from ``frame`` or the caller outwards.

    If there is none, as in the command line, it is backburn's innermost frame outside its internal packages.
    """
    frame = frame or sys._getframe(1)
    found = next((f for f, is_users in frames(frame) if is_users), None)
    if found is not None:
        return found
    return next(
        (f for f, _ in frames(frame) if _is_ours(f) and not f.f_globals.get("__name__", "").startswith(_LAYERS)), frame
    )


def call_site(frame: FrameType | None = None) -> str:
    """The file, line and function of :func:`user_frame`, from ``frame`` or the caller outwards."""
    found = user_frame(frame or sys._getframe(1))
    assert found is not None
    return f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}"


def stack_level() -> int:
    """The ``stacklevel`` with which a warning issued by the caller names the user's line."""
    counted = (f for f in frames(sys._getframe(1)) if "importlib._bootstrap" not in f[0].f_code.co_filename)
    levels = enumerate(counted, 1)  # as `warnings` counts
    return next((level for level, (_, is_users) in levels if is_users), 1)


def called_function() -> str | None:
    """The name of the public function that the user called: the outermost one inside the user's innermost frame."""
    found: str | None = None
    for frame, is_users in frames(sys._getframe(1)):
        if is_users:
            break
        if str(frame.f_globals.get("__name__", "")).startswith(_PUBLIC_PACKAGES):
            found = _public_name(frame) or found
    return found


def _public_name(frame: FrameType) -> str | None:
    """The public name of the function that runs in ``frame``; None if it is private.

    For a method of ``Tensor`` it is its name, for one of another class ``Class.method``, for ``__init__`` and
    ``forward`` the class, and for a closure (such as the one that ``grad`` returns) the function that created it.
    """
    path, home = frame.f_code.co_qualname, frame.f_globals
    maker, inside, _ = path.partition(".<locals>")
    owner, _, name = path.rpartition(".")
    if not inside and name.startswith("_") and not name.startswith("__"):
        return None
    own = {n: home.get(n) for n in home.get("__all__", ())}
    places: list[dict[str, Any]] = [own, *(vars(sys.modules.get(n, sys)) for n in NAMESPACES)]
    if name in ("__init__", "forward") and not inside:
        lineage = type(frame.f_locals.get("self")).__mro__  # the base that defines the method may not be public
        return next((c.__name__ for c in lineage if any(public.get(c.__name__) is c for public in places)), None)
    for public in places:
        if inside:
            if maker in public.get("__all__", public) and public[maker].__module__ == home["__name__"]:
                return maker
            continue
        if (owner or name) not in public.get("__all__", public):
            continue
        function = vars(public[owner]).get(name) if owner else public[name]
        if getattr(getattr(function, "__wrapped__", function), "__code__", None) is frame.f_code:
            return _OPERATORS.get(name) if name.startswith("__") else name if owner in ("", "Tensor") else path
    return None
