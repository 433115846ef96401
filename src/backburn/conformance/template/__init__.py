"""A package for a new backend, written into a folder: it works as it is, and waits for another array library."""

from __future__ import annotations

import keyword
from importlib.resources import files
from pathlib import Path

from backburn.base.errors import ArgumentError

#: The files of the package, and the templates that they are made from.
FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "backburn_{name}.py": "module.py.txt",
    "tests/test_conformance.py": "test_conformance.py.txt",
    "expected-failures.txt": "expected-failures.txt",
}


def write_template(name: str, folder: Path) -> list[Path]:
    """Write the package of a backend called ``name`` into ``folder``, and return the paths of its files.

    Raises :class:`ArgumentError` for a name that cannot be one of Python's, and where a file is there already.
    """
    if not name.isidentifier() or not name.islower() or keyword.iskeyword(name):
        raise ArgumentError(f"{name!r} cannot name a backend: take a small Python name, such as mylibrary")
    paths = {folder / path.format(name=name): template for path, template in FILES.items()}
    for path in paths:
        if path.exists():
            raise ArgumentError(f"{path} is there already: choose an empty folder")
    words = {"@name@": name, "@Class@": "".join(part.capitalize() for part in name.split("_")) + "Backend"}
    for path, template in paths.items():
        text = files(__name__).joinpath(template).read_text(encoding="utf-8")
        for word, replacement in words.items():
            text = text.replace(word, replacement)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(paths)
