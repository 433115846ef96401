"""The layering of packages: who may import whom, read from the sources, not from what a run happens to load.

Each package of `backburn` belongs to a layer and imports only its own modules and the layers below. Backends
know the two lowest layers. Everything outside the standard library is imported only where `THIRD_PARTY` says.
Imports inside functions and under `TYPE_CHECKING` count as well, with one exception: a name of NumPy's that is
used in annotations only computes nothing, so it may be imported for type checkers anywhere.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the bottom to the top; packages of one layer do not know each other. `__init__` is `backburn` itself,
# the names that users see, and so nothing below the command line may import it.
LAYERS = (
    ("base",),
    ("backend",),
    ("autodiff", "batching"),
    ("tensor",),
    ("transforms", "tape", "interop"),
    ("nn", "optim"),
    ("quantization", "data", "io"),
    ("train",),
    ("_namespace", "errors", "trees"),
    ("fourier", "linalg", "random"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
HEIGHT = {package: height for height, layer in enumerate(LAYERS) for package in layer}

# Beside the layers: what it may import. Only the command line may import it.
BESIDE = {"conformance": {"base", "backend", "autodiff"}}

# What a backend may import of the core.
BACKENDS_MAY_IMPORT = {"base", "backend"}

# Where a package from outside may be imported: modules of `backburn` with what is below them, or `backends` with
# what is below it. What NumPy's list has besides backends and conformance is the host-data boundary, and where NumPy's
# errors are silenced.
ANYWHERE = ("backburn", "backends")
THIRD_PARTY = {
    "typing_extensions": ANYWHERE,
    "numpy": (
        "backends",
        "backburn.base.dtypes",
        "backburn.base.quiet",
        "backburn.conformance",
        "backburn.data",
        "backburn.io",
        "backburn.tensor.host",
    ),
    "ml_dtypes": ("backends", "backburn.base.dtypes", "backburn.conformance", "backburn.io"),
    "cuda": ("backends.backburn_cupy",),
    "threadpoolctl": ("backends.backburn_numpy.blas",),
    "cudnn": ("backends.backburn_cupy",),
    "cupy": ("backends.backburn_cupy",),
    "cupyx": ("backends.backburn_cupy",),
    "cupy_backends": ("backends.backburn_cupy",),
    "graphviz": ("backburn.autodiff.tape.picture", "backburn.autodiff.tape.typed"),
    "pydantic": ("backburn.train", "backburn.cli"),
    "matplotlib": ("backburn.train", "backburn.cli"),
    "tqdm": ("backburn.train", "backburn.cli"),
    "safetensors": ("backburn.io",),
    "einops": ("backburn.interop.einops",),
    "pytest": ("backburn.conformance",),
}


@dataclass(frozen=True)
class Module:
    """A source file; `name` is dotted, and a backend's begins with `backends.`."""

    name: str
    path: Path

    @property
    def is_backend(self) -> bool:
        return self.name.startswith("backends.")

    @property
    def package(self) -> str:
        """The backend, or the package of `backburn`, that the module belongs to."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name."""

    target: str
    line: int
    for_type_checkers: bool


def read_modules(root: Path) -> list[Module]:
    """Return every module of the core and of the backends under a project's root."""
    modules = []
    for base, prefix in ((root / "src", ()), (root / "backends", ("backends",))):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            modules.append(Module(".".join(prefix + tuple(p for p in parts if p != "__init__")), path))
    return modules


class Imports(ast.NodeVisitor):
    """Collects a module's imports, wherever in the module they stand."""

    def __init__(self, module: Module) -> None:
        self.importing_package = module.name.removeprefix("backends.").split(".")
        if module.path.stem != "__init__":
            self.importing_package.pop()
        self.found: list[Import] = []
        self.for_type_checkers = False

    def add(self, node: ast.AST, target: str) -> None:
        self.found.append(Import(target, getattr(node, "lineno", 0), self.for_type_checkers))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        start = self.importing_package[: len(self.importing_package) - node.level + 1] if node.level else []
        source = ".".join([*start, *([node.module] if node.module else [])])
        for alias in node.names:
            # `from backburn import tensor` names a package, `from backburn import add` a name for users.
            names_package = source == "backburn" and (alias.name in HEIGHT or alias.name in BESIDE)
            self.add(node, f"backburn.{alias.name}" if names_package else source)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        argument = node.args[0] if node.args else None
        if function in {"import_module", "__import__"} and isinstance(argument, ast.Constant):
            self.add(node, str(argument.value))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        before = self.for_type_checkers
        self.for_type_checkers = before or ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"
        for child in node.body:
            self.visit(child)
        self.for_type_checkers = before
        for child in node.orelse:
            self.visit(child)


def package_of(target: str) -> str:
    """Return the package of `backburn` that an absolute name such as `backburn.tensor.host` belongs to."""
    return target.split(".")[1] if "." in target else "__init__"


def why_not_core(module: Module, target: str) -> str | None:
    """Why may this module not import this part of `backburn`? None if it may."""
    above, below = module.package, package_of(target)
    if module.is_backend:
        return None if below in BACKENDS_MAY_IMPORT else f"a backend does not know {below}"
    for package in (above, below):
        if package not in HEIGHT and package not in BESIDE:
            return f"{package} has no layer: give it one in LAYERS"
    if above == below:
        return None
    if above in BESIDE:
        return None if below in BESIDE[above] else f"{above} does not know {below}"
    if below in BESIDE:
        return None if above == "cli" else f"only cli knows {below}"
    return None if HEIGHT[below] < HEIGHT[above] else f"{below} is not below {above}"


def why_not_third_party(module: Module, package: str) -> str | None:
    """Why may this module not import this package from outside? None if it may."""
    if package not in THIRD_PARTY:
        return f"{package} is not among THIRD_PARTY"
    places = THIRD_PARTY[package]
    if any(f"{module.name}.".startswith(f"{place}.") for place in places):
        return None
    return f"{package} is imported only in {', '.join(places)}"


def why_not(module: Module, imported: Import, backends: set[str]) -> str | None:
    """Why may this module not import this? None if it may."""
    package = imported.target.split(".")[0]
    if package == "backburn":
        return why_not_core(module, imported.target)
    if package in backends:
        own = module.is_backend and package == module.package
        return None if own else f"{package} is found through its entry point, not imported"
    if package in sys.stdlib_module_names or (package == "numpy" and imported.for_type_checkers):
        return None
    return why_not_third_party(module, package)


def violations(root: Path) -> Iterator[str]:
    """Yield `path:line: reason` for each import in the project that the layers do not allow."""
    modules = read_modules(root)
    backends = {module.package for module in modules if module.is_backend}
    for module in modules:
        imports = Imports(module)
        imports.visit(ast.parse(module.path.read_text(encoding="utf-8")))
        for imported in imports.found:
            if reason := why_not(module, imported, backends):
                yield f"{module.path.relative_to(root).as_posix()}:{imported.line}: {reason}"


def build(root: Path, files: dict[str, str]) -> Path:
    """Write a made-up project."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_project_keeps_the_layers() -> None:
    assert len(read_modules(ROOT)) > 1
    assert list(violations(ROOT)) == []


def test_what_is_allowed(tmp_path: Path) -> None:
    files = {
        "src/backburn/__init__.py": "import typing\nfrom backburn.tensor import add\nfrom . import nn\n",
        "src/backburn/__main__.py": "from backburn.cli import main\n",
        "src/backburn/base/__init__.py": "from backburn.base.errors import Error\n",
        "src/backburn/base/errors.py": "import collections.abc\nfrom typing_extensions import override\n",
        "src/backburn/base/dtypes.py": "import numpy as np\ntry:\n    import ml_dtypes\nfinally: pass\n",
        "src/backburn/backend/__init__.py": "from . import registry\nfrom ..base import errors\n",
        "src/backburn/backend/registry.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy.typing as npt\n"
        ),
        "src/backburn/tensor/host.py": "import numpy\nfrom backburn.backend import Backend\n",
        "src/backburn/train/loop.py": "import backburn.data, tqdm\nfrom backburn.io import save\n",
        "src/backburn/conformance/suite.py": "import numpy, pytest\nfrom backburn.autodiff import Autodiff\n",
        "src/backburn/cli.py": "import backburn as bb\nfrom backburn import conformance, train\n",
        "backends/backburn_numpy/__init__.py": "import numpy\nfrom backburn_numpy.reduce import sum\n",
        "backends/backburn_numpy/reduce.py": "from backburn.backend import x\nfrom . import elementwise\n",
        "backends/backburn_numpy/elementwise.py": "from backburn.base.errors import Error\n",
        "backends/backburn_cupy/__init__.py": "import cupy, cupyx\n",
    }
    assert list(violations(build(tmp_path, files))) == []


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        # Upwards, however the import is spelled and wherever it stands.
        ("src/backburn/base/x.py", "from backburn.backend import x", "x.py:1: backend is not below base"),
        ("src/backburn/base/x.py", "import backburn.tensor.host", "x.py:1: tensor is not below base"),
        ("src/backburn/backend/x.py", "\nfrom backburn import autodiff", "x.py:2: autodiff is not below"),
        ("src/backburn/autodiff/x.py", "from ..tensor import add", "tensor is not below autodiff"),
        ("src/backburn/autodiff/__init__.py", "from ..tensor import add", "tensor is not below autodiff"),
        ("src/backburn/tensor/a/x.py", "from ...nn import Linear", "nn is not below tensor"),
        ("src/backburn/tensor/x.py", "def f():\n    import backburn.nn", "x.py:2: nn is not below tensor"),
        (
            "src/backburn/transforms/x.py",
            "from importlib import *\nimport_module('backburn.nn')",
            "nn is not",
        ),
        (
            "src/backburn/nn/x.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from backburn.train import Loop",
            "x.py:3: train is not below nn",
        ),
        ("src/backburn/data/x.py", "from backburn.train import Loop", "train is not below data"),
        ("src/backburn/train/x.py", "from backburn.cli import main", "cli is not below train"),
        ("src/backburn/__init__.py", "from backburn.cli import main", "cli is not below __init__"),
        # The same layer, another package.
        ("src/backburn/optim/x.py", "from backburn.nn import Module", "nn is not below optim"),
        # The users' names, from within.
        ("src/backburn/nn/x.py", "import backburn as bb", "__init__ is not below nn"),
        ("src/backburn/nn/x.py", "from backburn import relu", "__init__ is not below nn"),
        # A package without a layer, on either side.
        ("src/backburn/attic/x.py", "import backburn.base", "attic has no layer"),
        ("src/backburn/tensor/x.py", "import backburn.attic", "attic has no layer"),
        # Conformance.
        ("src/backburn/conformance/x.py", "import backburn.tensor", "conformance does not know tensor"),
        ("src/backburn/train/x.py", "import backburn.conformance", "only cli knows conformance"),
        # Backends.
        ("backends/backburn_numpy/x.py", "import backburn.autodiff", "a backend does not know autodiff"),
        ("backends/backburn_numpy/x.py", "import backburn", "a backend does not know __init__"),
        ("backends/backburn_numpy/x.py", "import backburn_cupy", "backburn_cupy is found through"),
        ("src/backburn/backend/x.py", "import backburn_numpy", "backburn_numpy is found through"),
        # Packages from outside.
        ("src/backburn/base/x.py", "import numpy", "numpy is imported only in"),
        ("src/backburn/tensor/x.py", "from numpy.linalg import inv", "numpy is imported only in"),
        ("src/backburn/tensor/hosting.py", "import numpy", "numpy is imported only in"),
        (
            "src/backburn/nn/x.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = 1\nelse:\n    import numpy",
            "x.py:5: numpy is imported only in",
        ),
        ("src/backburn/conformance/x.py", "import cupy", "cupy is imported only in backends.backburn_cupy"),
        ("backends/backburn_numpy/x.py", "from cupyx.jit import rawkernel", "cupyx is imported only in"),
        ("src/backburn/nn/x.py", "import tqdm", "tqdm is imported only in"),
        ("backends/backburn_numpy/x.py", "import scipy.special", "scipy is not among THIRD_PARTY"),
    ],
)
def test_each_rule_can_fail(path: str, text: str, expected: str, tmp_path: Path) -> None:
    ground = {"backends/backburn_numpy/__init__.py": "", "backends/backburn_cupy/__init__.py": ""}
    found = list(violations(build(tmp_path, {**ground, path: text})))
    assert len(found) == 1, found
    assert found[0].startswith(path)
    assert expected in found[0]
