"""Writes the API reference from what the package makes public, and refuses names without a docstring.

A name is public if a module without a leading underscore lists it in `__all__`. It is documented once, where
the path to it is shortest: under `backburn` if that exports it. Each undocumented name is a warning,
and so fails a build in which warnings are errors.

Classes and functions have docstrings. A method may leave its docstring to a base class: an operation is described
in the contract and not again in each backend. A constant has a comment `#:` above it, or a string below it, where
it is defined, unless it is an instance of a class of the package, which describes it.
"""

import importlib
import inspect
import os
import pkgutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging

logger = logging.getLogger(__name__)

PAGE = """\
{title}
{line}

.. automodule:: {module}
   :no-members:

.. currentmodule:: {module}

.. autosummary::

{table}

{entries}
"""

INDEX = """\
API reference
=============

Every public name, under the shortest path that leads to it. The source of every :doc:`gradient rule </gradient-rules>`
is on a page of the operations.

.. toctree::
   :maxdepth: 1

{pages}
"""


@dataclass
class Page:
    """A module and the public names that are documented on its page."""

    module: str
    names: dict[str, object] = field(default_factory=dict)


def modules_of(root: str) -> Iterator[tuple[str, ModuleType]]:
    """Yield a package and all modules below it with the paths that lead to them, such as `backburn.linalg`.

    Left out are `__main__`, whose import runs it, and modules that need an optional package that is not there.
    """
    package = importlib.import_module(root)
    yield root, package
    for info in pkgutil.walk_packages(package.__path__, f"{root}."):
        if info.name.endswith(".__main__"):
            continue
        try:
            yield info.name, importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] == root:
                raise
            logger.info("%s is not documented: it needs %s", info.name, error.name)


def is_public(path: str) -> bool:
    """Tell whether no part of a module's path has a leading underscore."""
    return not any(part.startswith("_") for part in path.split("."))


def pages(modules: list[tuple[str, ModuleType]]) -> list[Page]:
    """Give each public object to the module with the shortest path to it."""
    seen: set[tuple[str, int]] = set()
    result = []
    public = ((path, module) for path, module in modules if is_public(path))
    for path, module in sorted(public, key=lambda pair: pair[0].count(".")):
        page = Page(path)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            key = (name, id(value))
            if not inspect.ismodule(value) and not name.startswith("__") and key not in seen:
                seen.add(key)
                page.names[name] = value
        if page.names:
            result.append(page)
    return result


def constants(modules: list[tuple[str, ModuleType]]) -> dict[str, str]:
    """Return the descriptions of module-level names, in comments `#:` or in strings below them."""
    described = {}
    for _, module in modules:
        for (scope, name), lines in ModuleAnalyzer.for_module(module.__name__).find_attr_docs().items():
            if not scope:
                described[name] = "\n".join(lines).strip()
    return described


def is_constant(value: object) -> bool:
    """Tell a constant from a class or a function."""
    return not inspect.isclass(value) and not inspect.isroutine(value)


def describe(name: str, value: object, described: dict[str, str]) -> str:
    """Return the text about a constant, empty if there is none."""
    kind = type(value)
    ours = kind.__module__.startswith("backburn") and has_docstring(kind)
    return described.get(name) or (f"An instance of `{kind.__name__}`." if ours else "")


def has_docstring(cls: type) -> bool:
    """Tell whether somebody wrote a docstring for this class: a dataclass's generated one does not count."""
    text = cls.__dict__.get("__doc__")
    return bool(text) and not text.startswith(f"{cls.__name__}(")


def undocumented_methods(cls: type) -> Iterator[str]:
    """Yield the public methods and properties of a class that neither it nor a base class describes."""
    for name, member in vars(cls).items():
        if name.startswith("_") or not (inspect.isroutine(member) or isinstance(member, property)):
            continue
        if not any(inspect.getdoc(vars(base)[name]) for base in cls.__mro__ if name in vars(base)):
            yield name


def undocumented(page: Page, described: dict[str, str]) -> Iterator[str]:
    """Yield the full names of what a page should describe and cannot."""
    for name, value in page.names.items():
        full_name = f"{page.module}.{name}"
        if inspect.isclass(value):
            if not has_docstring(value):
                yield full_name
            yield from (f"{full_name}.{method}" for method in undocumented_methods(value))
        elif not (describe(name, value, described) if is_constant(value) else inspect.getdoc(value)):
            yield full_name


def directive(name: str, value: object, described: dict[str, str]) -> str:
    """Return the directive that documents an object."""
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return f".. {kind}:: {name}\n   :members:\n   :show-inheritance:\n"
    if is_constant(value):
        text = textwrap.indent(describe(name, value, described), "   ")
        return f".. py:data:: {name}\n   :type: {type(value).__name__}\n\n{text}\n"
    return f".. autofunction:: {name}\n"


def write_if_changed(path: Path, text: str) -> None:
    """Write a file only if it changes, so that builds stay incremental; another build may read it meanwhile."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)


def generate(app: Sphinx) -> None:
    """Write one page per module and the index, and warn about every undocumented name."""
    folder = Path(app.srcdir) / "reference" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    backends = sorted(
        point.module
        for point in entry_points(group="backburn.backends")
        if point.dist is not None and point.dist.name == "backburn"
    )
    modules = [module for root in ("backburn", *backends) for module in modules_of(root)]
    described = constants(modules)
    written = pages(modules)
    for page in written:
        text = PAGE.format(
            title=page.module,
            line="=" * len(page.module),
            module=page.module,
            table="\n".join(f"   {name}" for name, value in page.names.items() if not is_constant(value)),
            entries="\n".join(directive(name, value, described) for name, value in page.names.items()),
        )
        write_if_changed(folder / f"{page.module}.rst", text)
        for name in undocumented(page, described):
            logger.warning("public name without a docstring: %s", name, type="public_api")
    listed = "\n".join(f"   {page.module}" for page in written)
    write_if_changed(folder / "index.rst", INDEX.format(pages=listed))
    for stale in set(folder.glob("*.rst")) - {folder / f"{page.module}.rst" for page in written}:
        if stale.name != "index.rst":
            stale.unlink()


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("builder-inited", generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
