"""A package for a new backend, written into a folder: it works as it is, and can be adapted to any array library."""

from __future__ import annotations

import keyword
import os
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from backburn.backend.registry import BACKENDS, BUILT_IN, DECORATORS
from backburn.base.errors import ArgumentError

#: The files of the package, and their templates.
FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "backburn_{name}.py": "module.py.txt",
    "tests/test_conformance.py": "test_conformance.py.txt",
    "expected-failures.txt": "expected-failures.txt",
}


def write_template(name: str, folder: Path) -> list[Path]:
    """Write the package of a backend called ``name`` into ``folder``, and return the paths of its files.

    Raises :class:`ArgumentError` for a name that is not a lower-case Python identifier, or that a backend, a decorator
    or a package already has, and if a file exists already.
    """
    if not name.isidentifier() or not name.islower() or keyword.iskeyword(name):
        raise ArgumentError(f"{name!r} cannot name a backend: choose a lower-case Python name, such as mylibrary")
    paths = {folder / path.format(name=name): template for path, template in FILES.items()}
    for path in paths:
        if os.path.lexists(path):  # also a dangling link, through which the file would be written
            raise ArgumentError(f"{path} exists already: choose an empty folder")
    if holder := _holder(name):
        raise ArgumentError(f"{name!r} cannot name a new backend, since {holder}: choose another name")
    words = {"@name@": name, "@Class@": "".join(part.capitalize() for part in name.split("_")) + "Backend"}
    for path, template in paths.items():
        text = files(__name__).joinpath(template).read_text(encoding="utf-8")
        for word, replacement in words.items():
            text = text.replace(word, replacement)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(paths)


def _holder(name: str) -> str:
    """The owner of a name that is taken, or of its package's name; ``""`` if both are free."""
    known = {*BUILT_IN[BACKENDS], *BUILT_IN[DECORATORS]}
    for group in (BACKENDS, DECORATORS):
        known |= {point.name for point in entry_points(group=group)}
    if name in known:
        return "another one has this name"
    return f"the module backburn_{name} exists" if find_spec(f"backburn_{name}") is not None else ""
