"""The layers and sizes of packages, read from the sources instead of from the modules that a run loads.

Each package of `backburn` belongs to a layer and imports only its own modules and the layers below. Backends
import only `BACKENDS_MAY_IMPORT`, and third-party packages are imported only where `THIRD_PARTY` allows it.
Imports inside functions and under `TYPE_CHECKING` count as well, with one exception: NumPy may be imported
anywhere under `TYPE_CHECKING`, because annotations compute nothing.

Import cycles between packages, or between the sub-packages of one package, are not allowed. A folder holds at most
`LARGEST_FOLDER` modules beside its `__init__`.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From bottom to top; packages of one layer do not import each other. `__init__` is `backburn` itself with the users'
# names, which only the command line may import. `autodiff.tape` has this name for users, but is above `tapes` for
# imports: the rest of `autodiff` does not import it.
LAYERS = (
    ("base",),
    ("hints",),
    ("ops",),
    ("backend",),
    ("programs",),
    ("communicators",),
    ("decorators",),
    ("autodiff", "batching"),
    ("tensor",),
    ("transforms", "tapes", "interop"),
    ("tape", "autodiff.tape"),
    ("nn", "optim"),
    ("quantization", "data", "io"),
    ("models", "onnx"),
    ("distributed",),
    ("train",),
    ("_namespace", "dtypes", "errors", "trees"),
    ("fft", "fourier", "linalg", "random"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
HEIGHT = {package: height for height, layer in enumerate(LAYERS) for package in layer}

# A package outside the layers and what it may import. Only the command line may import it.
BESIDE = {"conformance": {"base", "hints", "ops", "backend", "communicators", "decorators", "autodiff"}}

# The packages above the decorators that may import them. Others use functions of `backend` instead.
KNOW_DECORATORS = {"distributed", "train", "cli", "__init__"}

# Packages of the core that a backend may import.
BACKENDS_MAY_IMPORT = {"base", "ops", "backend", "programs", "communicators", "decorators"}

# The largest number of modules in one folder.
LARGEST_FOLDER = 30

# Modules that may import a third-party package, including their submodules. NumPy's list, except backends and
# conformance, is the host-data boundary.
ANYWHERE = ("backburn", "backends")
THIRD_PARTY = {
    "typing_extensions": ANYWHERE,
    "numpy": (
        "backends",
        "backburn.base.dtypes",
        "backburn.communicators.count",
        "backburn.communicators.local",
        "backburn.communicators.mpi",
        "backburn.conformance",
        "backburn.data",
        "backburn.io",
        "backburn.models.generation",
        "backburn.models.gguf",
        "backburn.models.sampling",
        "backburn.onnx",
        "backburn.tensor.core.host",
    ),
    "tokenizers": ("backburn.models.tokenizer",),
    "jinja2": ("backburn.models.templates", "backburn.models.tokenizer"),
    "ml_dtypes": ("backends", "backburn.base.dtypes", "backburn.conformance", "backburn.io", "backburn.onnx"),
    "onnx": ("backburn.onnx",),
    "google": ("backburn.onnx.protos",),
    "cuda": ("backends.backburn_cupy",),
    "threadpoolctl": ("backends.backburn_numpy.runtime.blas",),
    "mpi4py": ("backburn.communicators.mpi",),
    "cudnn": ("backends.backburn_cupy",),
    "cupy": ("backends.backburn_cupy",),
    "cupyx": ("backends.backburn_cupy",),
    "cupy_backends": ("backends.backburn_cupy",),
    "graphviz": ("backburn.tapes.picture", "backburn.tapes.graph"),
    "pydantic": ("backburn.train", "backburn.cli"),
    "matplotlib": ("backburn.train", "backburn.cli"),
    "tqdm": ("backburn.train", "backburn.cli"),
    "einops": ("backburn.interop.einops",),
    "PIL": ("backburn.data.images",),
    "pyarrow": ("backburn.data.delimited", "backburn.data.tables"),
    "tensorboardX": ("backburn.train.loggers",),
    "wandb": ("backburn.train.loggers",),
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
        if self.is_backend:
            return self.name.split(".")[1]
        return package_of(self.name)


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
    """Collects a module's imports, at any position in the module."""

    def __init__(self, module: Module, packages: set[str]) -> None:
        self.packages = packages
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
            has_layer = source == "backburn" and (alias.name in HEIGHT or alias.name in BESIDE)
            name = f"{source}.{alias.name}"
            self.add(node, name if has_layer or name in self.packages else source)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        argument = node.args[0] if node.args else None
        if function in {"import_module", "__import__"} and isinstance(argument, ast.Constant):
            self.add(node, str(argument.value))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        before = self.for_type_checkers
        name = getattr(node.test, "attr", getattr(node.test, "id", ""))
        self.for_type_checkers = before or name == "TYPE_CHECKING"
        for child in node.body:
            self.visit(child)
        self.for_type_checkers = before
        for child in node.orelse:
            self.visit(child)


def package_of(target: str) -> str:
    """Return the package of `backburn` that an absolute name such as `backburn.tensor.core.host` belongs to."""
    _, *parts = target.split(".")
    return ".".join(parts[:2]) if ".".join(parts[:2]) in HEIGHT else parts[0] if parts else "__init__"


def folders_of(modules: list[Module]) -> set[str]:
    """Return the dotted names of the packages and sub-packages that hold the modules."""
    names = {module.name if module.path.stem == "__init__" else module.name.rpartition(".")[0] for module in modules}
    return {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}


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
    if below == "decorators" and above not in KNOW_DECORATORS:
        return f"{above} knows no decorator"
    return None if HEIGHT[below] < HEIGHT[above] else f"{below} is not below {above}"


def why_not_third_party(module: Module, package: str) -> str | None:
    """Why may this module not import this third-party package? None if it may."""
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


@cache
def read_imports(root: Path) -> list[tuple[Module, list[Import]]]:
    """Return every module of the project with its imports."""
    modules = read_modules(root)
    packages = folders_of(modules)
    found = []
    for module in modules:
        imports = Imports(module, packages)
        imports.visit(ast.parse(module.path.read_text(encoding="utf-8")))
        found.append((module, imports.found))
    return found


def violations(root: Path) -> Iterator[str]:
    """Yield `path:line: reason` for each import in the project that the layers do not allow."""
    imports = read_imports(root)
    backends = {module.package for module, _ in imports if module.is_backend}
    for module, found in imports:
        for imported in found:
            if reason := why_not(module, imported, backends):
                yield f"{module.path.relative_to(root).as_posix()}:{imported.line}: {reason}"


def import_cycles(root: Path) -> Iterator[str]:
    """Yield `package: a -> b -> a` for each package of the core with an import cycle of its sub-packages."""
    imports = [(module, found) for module, found in read_imports(root) if not module.is_backend]
    packages = folders_of([module for module, _ in imports])
    for package in sorted(packages):
        rooms = {name.removeprefix(f"{package}.") for name in packages if name.rpartition(".")[0] == package}

        def room_of(name: str, package: str = package, rooms: set[str] = rooms) -> str | None:
            if not name.startswith(f"{package}."):
                return None
            room = package_of(name) if package == "backburn" else name.removeprefix(f"{package}.").split(".")[0]
            return room if room in rooms or room in HEIGHT else None

        needs: dict[str, set[str]] = {}
        for module, found in imports:
            if above := room_of(module.name):
                needs.setdefault(above, set()).update(
                    below for imported in found if (below := room_of(imported.target)) and below != above
                )
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            yield f"{package}: {' -> '.join(reversed(error.args[1]))}"


def large_folders(root: Path) -> Iterator[str]:
    """Yield `path: number of modules` for each folder with more modules than `LARGEST_FOLDER`."""
    modules = (path for base in ("src", "backends", "tests") for path in (root / base).rglob("*.py"))
    sizes = Counter(path.parent for path in modules if path.name != "__init__.py")
    for folder, size in sorted(sizes.items()):
        if size > LARGEST_FOLDER:
            yield f"{folder.relative_to(root).as_posix()}: {size} modules"


def build(root: Path, files: dict[str, str]) -> Path:
    """Write a fake project."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_project_keeps_the_layers() -> None:
    assert len(read_modules(ROOT)) > 1
    assert list(violations(ROOT)) == []


def test_allowed_imports(tmp_path: Path) -> None:
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
        "src/backburn/tensor/core/host.py": "import numpy\nfrom backburn.backend import Backend\n",
        "src/backburn/train/loop.py": "import backburn.data, tqdm\nfrom backburn.io import save\n",
        "src/backburn/conformance/runner/suite.py": "import numpy, pytest\nfrom backburn.autodiff import Autodiff\n",
        "src/backburn/cli.py": "import backburn as bb\nfrom backburn import conformance, train\n",
        "backends/backburn_numpy/__init__.py": "import numpy\nfrom backburn_numpy.reduce import sum\n",
        "backends/backburn_numpy/reduce.py": "from backburn.backend import x\nfrom . import elementwise\n",
        "backends/backburn_numpy/elementwise.py": "from backburn.base.errors import Error\n",
        "backends/backburn_cupy/__init__.py": "import cupy, cupyx\n",
    }
    assert list(violations(build(tmp_path, files))) == []


def test_packages_have_no_import_cycles() -> None:
    assert list(import_cycles(ROOT)) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # Packages of `backburn`.
        (
            {
                "src/backburn/autodiff/x.py": "from backburn.batching.y import y",
                "src/backburn/batching/y.py": "def f():\n    from backburn import autodiff",
            },
            "backburn: autodiff -> batching -> autodiff",
        ),
        # Sub-packages of one package, at any depth; a longer cycle.
        (
            {
                "src/backburn/tensor/core/x.py": "from ..sets.y import y",
                "src/backburn/tensor/sets/y.py": "import backburn.tensor.core.z",
            },
            "backburn.tensor: core -> sets -> core",
        ),
        (
            {
                "src/backburn/nn/a/b/x.py": "from backburn.nn.a import c",
                "src/backburn/nn/a/c/x.py": "from backburn.nn.a.d import f",
                "src/backburn/nn/a/d/x.py": "from backburn.nn.a.b.x import f",
            },
            "backburn.nn.a: b -> c -> d -> b",
        ),
        # No cycle: modules of one folder, modules beside a sub-package.
        (
            {
                "src/backburn/tensor/x.py": "from backburn.tensor.core import y",
                "src/backburn/tensor/core/y.py": "from backburn.tensor import x",
                "src/backburn/tensor/linalg/x.py": "from backburn.tensor.core import y",
            },
            None,
        ),
        # `autodiff.tape` is above `tapes`, which is above the rest of `autodiff`.
        (
            {
                "src/backburn/autodiff/tape/__init__.py": "from backburn.tapes.x import x",
                "src/backburn/tapes/x.py": "from backburn.autodiff.graph import x",
            },
            None,
        ),
    ],
)
def test_import_cycles_are_detected(files: dict[str, str], expected: str | None, tmp_path: Path) -> None:
    found = list(import_cycles(build(tmp_path, files)))
    if expected is None:
        assert found == []
        return
    (cycle,) = found
    package, names = cycle.split(": ")
    expected_package, expected_names = expected.split(": ")
    order, expected_order = names.split(" -> ")[1:], expected_names.split(" -> ")[1:]
    start = order.index(expected_order[0])
    assert (package, order[start:] + order[:start]) == (expected_package, expected_order)


def test_folders_stay_small() -> None:
    assert list(large_folders(ROOT)) == []


@pytest.mark.parametrize("folder", ["src/backburn/ops", "backends/backburn_numpy/ops", "tests/nn"])
def test_large_folders_are_detected(folder: str, tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(LARGEST_FOLDER)]
    build(tmp_path, {f"{folder}/{name}.py": "" for name in ("__init__", "parts/x", *names)})
    assert list(large_folders(tmp_path)) == []
    build(tmp_path, {f"{folder}/more.py": ""})
    assert list(large_folders(tmp_path)) == [f"{folder}: {LARGEST_FOLDER + 1} modules"]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        # Upwards, with any spelling and position of the import.
        ("src/backburn/base/x.py", "from backburn.backend import x", "x.py:1: backend is not below base"),
        ("src/backburn/base/x.py", "import backburn.tensor.core.host", "x.py:1: tensor is not below base"),
        ("src/backburn/backend/x.py", "\nfrom backburn import autodiff", "x.py:2: autodiff is not below"),
        ("src/backburn/autodiff/x.py", "import backburn.autodiff.tape", "autodiff.tape is not below autodiff"),
        ("src/backburn/autodiff/__init__.py", "from backburn.autodiff.tape import x", "autodiff.tape is not below"),
        ("src/backburn/tapes/x.py", "from backburn.autodiff.tape import x", "autodiff.tape is not below tapes"),
        ("src/backburn/autodiff/x.py", "from ..tensor import add", "tensor is not below autodiff"),
        ("src/backburn/autodiff/__init__.py", "from ..tensor import add", "tensor is not below autodiff"),
        ("src/backburn/tensor/a/x.py", "from ...nn import Linear", "nn is not below tensor"),
        # Downwards, to a decorator.
        ("src/backburn/optim/x.py", "from backburn.decorators.sharding import Sharded", "optim knows no decorator"),
        ("src/backburn/tensor/x.py", "def f():\n    import backburn.decorators", "x.py:2: tensor knows no decorator"),
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
        # Another package of one layer.
        ("src/backburn/optim/x.py", "from backburn.nn import Module", "nn is not below optim"),
        # The users' names, from inside the package.
        ("src/backburn/nn/x.py", "import backburn as bb", "__init__ is not below nn"),
        ("src/backburn/nn/x.py", "from backburn import relu", "__init__ is not below nn"),
        # A package without a layer, importing or imported.
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
        # Third-party packages.
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
def test_violations_of_each_rule_are_detected(path: str, text: str, expected: str, tmp_path: Path) -> None:
    ground = {"backends/backburn_numpy/__init__.py": "", "backends/backburn_cupy/__init__.py": ""}
    found = list(violations(build(tmp_path, {**ground, path: text})))
    assert len(found) == 1, found
    assert found[0].startswith(path)
    assert expected in found[0]
