"""Writes the API reference from what the package makes public, and refuses names without a docstring.

A name is public if a module without a leading underscore lists it in `__all__`. It is documented once, where
the path to it is shortest: under `backburn` if it can be had from there. Each undocumented name is a warning,
and so fails a build in which warnings are errors.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx
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

Every public name, under the shortest path that leads to it.

.. toctree::
   :maxdepth: 1

{pages}
"""


@dataclass
class Page:
    """A module and the public names that are documented on its page."""

    module: str
    names: dict[str, object] = field(default_factory=dict)


def public_modules(root: str) -> Iterator[ModuleType]:
    """Yield a package and all modules below it whose names have no leading underscore."""
    package = importlib.import_module(root)
    yield package
    for info in pkgutil.walk_packages(package.__path__, f"{root}."):
        if not any(part.startswith("_") for part in info.name.split(".")):
            yield importlib.import_module(info.name)


def pages(roots: list[str]) -> list[Page]:
    """Give each public object to the module with the shortest path to it."""
    modules = sorted((module for root in roots for module in public_modules(root)), key=lambda m: m.__name__.count("."))
    seen: set[tuple[str, int]] = set()
    result = []
    for module in modules:
        page = Page(module.__name__)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            key = (name, id(value))
            if not inspect.ismodule(value) and not name.startswith("__") and key not in seen:
                seen.add(key)
                page.names[name] = value
        if page.names:
            result.append(page)
    return result


def has_docstring(value: object) -> bool:
    """Tell whether somebody wrote a docstring: a dataclass's generated one does not count."""
    text = inspect.getdoc(value) if not inspect.isclass(value) else value.__dict__.get("__doc__")
    return bool(text) and not (inspect.isclass(value) and text.startswith(f"{value.__name__}("))


def undocumented(page: Page) -> Iterator[str]:
    """Yield the full names of classes, functions and public methods on a page that lack a docstring."""
    for name, value in page.names.items():
        if not inspect.isclass(value) and not callable(value):
            continue
        full_name = f"{page.module}.{name}"
        if not has_docstring(value):
            yield full_name
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                is_method = inspect.isroutine(member) or isinstance(member, property)
                if is_method and not attribute.startswith("_") and not has_docstring(getattr(value, attribute)):
                    yield f"{full_name}.{attribute}"


def directive(name: str, value: object) -> str:
    """Return the directive that documents an object."""
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return f".. {kind}:: {name}\n   :members:\n   :show-inheritance:\n"
    return f".. {'autofunction' if inspect.isroutine(value) else 'autodata'}:: {name}\n"


def write_if_changed(path: Path, text: str) -> None:
    """Leave an unchanged file alone, so that an incremental build stays one."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def generate(app: Sphinx) -> None:
    """Write one page per module and the index, and warn about every undocumented name."""
    folder = Path(app.srcdir) / "reference" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    backends = sorted(
        point.module
        for point in entry_points(group="backburn.backends")
        if point.dist is not None and point.dist.name == "backburn"
    )
    written = pages(["backburn", *backends])
    for page in written:
        text = PAGE.format(
            title=page.module,
            line="=" * len(page.module),
            module=page.module,
            table="\n".join(f"   {name}" for name in page.names),
            entries="\n".join(directive(name, value) for name, value in page.names.items()),
        )
        write_if_changed(folder / f"{page.module}.rst", text)
        for name in undocumented(page):
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
