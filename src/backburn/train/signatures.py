"""The arguments of functions that a configuration names: from their source, without importing it, or as imported.

A name is ``package.module:function``. Its module is searched for on the path, then in the configuration's folder. It is
the user's, or of an installed package, of which only public names are allowed. Functions of Python's standard library
build and measure no models but may harm files and machines; they are refused before the import.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backburn.base.errors import ConfigError, FileFormatError, hint_for
from backburn.base.foreign import quoted
from backburn.base.regular import read_regular

#: The most bytes of source that are read, and the most steps to evaluate an annotation.
MOST_SOURCE, MOST_STEPS = 2**24, 1000


@dataclass(frozen=True)
class Parameters:
    """The arguments that a function takes by keyword: types by name, required ones, and whether it takes any other."""

    types: Mapping[str, Any]
    required: frozenset[str]
    takes_any: bool = False


def parts_of_name(name: str) -> tuple[str, str]:
    """The module and the function of a name. Raises :class:`ConfigError` for anything else."""
    module, colon, function = name.partition(":")
    good = all(part.isidentifier() and len(part) <= 200 for part in (*module.split("."), *function.split(".")))
    if not colon or not good:
        raise ConfigError(f"{quoted(name)} is not a function: write package.module:function")
    return module, function


def checked_name(name: str, folder: Path) -> tuple[str, str]:
    """The module and the function of a name that may be imported. Raises :class:`ConfigError` for any other.

    >>> checked_name("os:system", Path())
    Traceback (most recent call last):
    backburn.base.errors.ConfigError: 'os:system' is of Python's own library: name a function of a module of yours
    """
    module, function = parts_of_name(name)
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(f"{quoted(name)} is of Python's own library: name a function of a module of yours")
    if any(part.startswith("_") for part in (*module.split("."), *function.split("."))):
        path = source_of(module, folder)
        if path is not None and _INSTALLED & set(path.parts):
            raise ConfigError(f"{quoted(name)} is not a public name of its package: name a function of your own module")
    return module, function


def imported(name: str, folder: Path) -> Callable[..., Any]:
    """The function of a name. Raises :class:`ConfigError` if there is none; errors inside of its module are raised.

    Functions that a module imports from Python's standard library are refused, and names of an installed package that
    its ``__all__`` does not list.
    """
    module, function = checked_name(name, folder)
    if str(folder) not in sys.path and _top_level(module) is None:
        sys.path.append(str(folder))  # last, and only for modules not on the path: a file there shadows nothing
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(
                f"there is no module {error.name!r}, neither in the environment nor in {folder}"
            ) from None
        raise
    public = getattr(found, "__all__", None)
    if public is not None and _INSTALLED & set(Path(getattr(found, "__file__", None) or "").parts):
        first = function.partition(".")[0]
        if first not in public and hasattr(found, first):
            raise ConfigError(f"{quoted(name)} is not a public name of its package: name a function of your own module")
    for part in function.split("."):
        if not hasattr(found, part):
            names = [n for n in getattr(found, "__dict__", ()) if not n.startswith("_")]
            raise ConfigError(f"{module} has no {quoted(part)}. {hint_for(part, names)}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{name} is a {type(found).__name__}, not a function")
    if _home(found) in sys.stdlib_module_names:
        raise ConfigError(f"{quoted(name)} is of Python's own library: name a function of a module of yours")
    return found


def _top_level(module: str) -> Any:
    """The file or folder on the path of the outermost package of a module; None if there is none."""
    try:
        return importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None


#: Folders of installed packages.
_INSTALLED = {"site-packages", "dist-packages"}


def _home(function: Any) -> str:
    """The outermost package of a callable; for a partial, that of its function."""
    for _ in range(100):
        if not isinstance(function, functools.partial):
            break
        function = function.func
    module = getattr(function, "__module__", None)
    return (module if isinstance(module, str) else type(function).__module__).partition(".")[0]


def check_fits(name: str, function: Callable[..., Any], skip: int, arguments: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for a function that cannot be called with ``skip`` values and these arguments."""
    try:
        inspect.signature(function).bind(*[None] * skip, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{quoted(name)} is not called with {_words(skip, arguments)}: {error}") from None


def _words(skip: int, arguments: Mapping[str, Any]) -> str:
    words = [*["a model", "a batch"][:skip], *(f"{key}=" for key in arguments)]
    return ", ".join(words) or "no arguments"


def parameters_of(function: Callable[..., Any], skip: int = 0) -> Parameters:
    """The arguments of a function after the first ``skip``.

    Raises :class:`ConfigError` for one without a signature.
    """
    try:
        entries = list(inspect.signature(function).parameters.values())[skip:]
    except (TypeError, ValueError):  # one that is not written in Python
        raise ConfigError(
            f"{function!r:.80} does not say what arguments it takes: name a function of yours that calls it"
        ) from None
    source: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(source, include_extras=True)
    except Exception:  # names that exist for type checkers only
        hints = {}
    usable = [p for p in entries if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Parameters(
        {p.name: hints.get(p.name, Any) for p in usable},
        frozenset(p.name for p in usable if p.default is p.empty),
        any(p.kind == p.VAR_KEYWORD for p in entries),
    )


def parameters_in_source(name: str, folder: Path, skip: int = 0) -> Parameters | None:
    """The arguments of a function from its source, which is read but not run; None if the source does not tell.

    Types of Python and of ``typing`` are known, all others are ``Any``. Raises :class:`ConfigError` if there is no such
    module or function.
    """
    module, function = checked_name(name, folder)
    path = source_of(module, folder)
    if path is None:
        raise ConfigError(f"there is no module {quoted(module)}, neither in the environment nor in {folder}")
    if path.suffix != ".py":
        return None
    try:
        tree = ast.parse(read_regular(path, MOST_SOURCE))
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from None
    except FileFormatError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path}: this is not Python source: {str(error) or 'it is nested too deeply'}") from None
    body: list[ast.stmt] = tree.body
    node: Any = None
    for part in function.split("."):
        node = next((n for n in body if getattr(n, "name", None) == part), None)
        if node is None:
            names = _names(body)
            if part in names or "*" in names:  # imported, or computed
                return None
            raise ConfigError(f"{module} has no {quoted(part)}. {hint_for(part, names)}")
        body = getattr(node, "body", [])
    if isinstance(node, ast.ClassDef):
        node, skip = next((n for n in node.body if getattr(n, "name", None) == "__init__"), None), skip + 1
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    if node.decorator_list:
        return None
    return _parameters(node.args, skip, _aliases(tree))


def source_of(module: str, folder: Path) -> Path | None:
    """The file of a module, found without importing it or a package around it."""
    for place in [*(Path(p or ".") for p in sys.path), folder]:
        inside = place.joinpath(*module.split("."))
        for found in (inside / "__init__.py", inside.with_suffix(".py")):
            if os.path.isfile(found):  # returns False for a name that is too long, as does the next
                return found
        if os.path.isdir(inside.parent):
            for found in inside.parent.glob(f"{inside.name}.*"):
                if found.suffix in (".so", ".pyd"):
                    return found
    return None


def _aliases(tree: ast.Module) -> dict[str, ast.expr]:
    """The expressions assigned to names at module level, which may be types."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


def _parameters(arguments: ast.arguments, skip: int, aliases: Mapping[str, ast.expr]) -> Parameters:
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = {a.arg for a in positional[len(positional) - len(arguments.defaults) :]} if arguments.defaults else set()
    by_keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    optional |= {a.arg for a, default in by_keyword if default is not None}
    usable = [*[a for a in positional[skip:] if a not in arguments.posonlyargs], *arguments.kwonlyargs]
    return Parameters(
        {a.arg: _type(a.annotation, aliases) for a in usable},
        frozenset(a.arg for a in usable if a.arg not in optional),
        arguments.kwarg is not None,
    )


_TYPES: dict[str, Any] = {
    **{t.__name__: t for t in (int, float, str, bool, list, dict, tuple, set)},
    **{name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union", "List", "Dict", "Tuple")},
    "Sequence": Sequence,
    "Mapping": Mapping,
    "Path": Path,
}


def _type(node: ast.expr | None, aliases: Mapping[str, ast.expr]) -> Any:
    """The type that an annotation means, or ``Any`` if unknown."""
    try:
        return _evaluated(node, aliases, iter(range(MOST_STEPS))) if node is not None else Any
    except (LookupError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return Any


def _evaluated(node: ast.expr, aliases: Mapping[str, ast.expr], steps: Iterator[int]) -> Any:
    if next(steps, None) is None:  # names that refer to one another may grow without bound
        raise LookupError
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return _evaluated(ast.parse(node.value, mode="eval").body, aliases, steps)
        return node.value
    if isinstance(node, ast.Name):
        return _TYPES[node.id] if node.id in _TYPES else _evaluated(aliases[node.id], aliases, steps)
    if isinstance(node, ast.Attribute):
        return _TYPES[node.attr]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _evaluated(node.left, aliases, steps) | _evaluated(node.right, aliases, steps)
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if ast.unparse(node.value).endswith("Annotated"):  # its metadata are ignored
            return _evaluated(parts[0], aliases, steps)
        outer = _evaluated(node.value, aliases, steps)
        if outer is typing.Literal:
            return outer[tuple(ast.literal_eval(part) for part in parts)]
        values = [
            ... if isinstance(p, ast.Constant) and p.value is ... else _evaluated(p, aliases, steps) for p in parts
        ]
        return outer[tuple(values)]
    raise LookupError


def _names(body: Sequence[ast.stmt]) -> set[str]:
    """The names that statements bind at the top of a module."""
    found: set[str] = set()
    for node in ast.walk(ast.Module(list(body), [])):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found
