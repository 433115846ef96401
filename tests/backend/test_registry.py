"""Backends by name: expressions, interning, broken plugins, wrong names."""

import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import backburn as bb
from backburn.backend import (
    AutodiffBackend,
    Backend,
    Wrapper,
    is_autodiff,
    list_backends,
    list_decorators,
    load_backend,
    register_backend,
    register_decorator,
    registry,
)
from backburn.backend.spec import Decorated, Expression, parse
from backburn.backend.user_operations import withdraw
from backburn.base.errors import ArgumentError, BackendMismatchError, BackendUnavailableError, SpecError

# ---- reading expressions ----


def test_the_parts_of_an_expression() -> None:
    found = parse(" autodiff( cupy:1(float_dtype=bfloat16, graphs = true, memory=1.5e9, pool=-1) , strict=FALSE )")
    assert isinstance(found, Decorated)
    assert (found.name, found.options) == ("autodiff", {"strict": False})
    inner = found.inner
    assert (inner.name, inner.device) == ("cupy", 1)
    assert inner.options == {"float_dtype": "bfloat16", "graphs": True, "memory": 1.5e9, "pool": -1}
    assert list(found.names()) == ["autodiff", "cupy"]


@pytest.mark.parametrize("text", ["numpy", "numpy()", " numpy ( ) "])
def test_a_name_alone(text: str) -> None:
    found = parse(text)
    assert (type(found), found.name, found.device, found.options) == (Expression, "numpy", None, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a name and found the end"),
        ("3", "expected a name and found '3'"),
        ("(numpy)", r"expected a name and found '\('"),
        ("autodiff(numpy", r"expected '\)' and found the end"),
        ("autodiff(numpy))", r"nothing may follow, and '\)' does"),
        ("numpy numpy", "nothing may follow, and 'numpy' does"),
        ("numpy:", "expected the number of a device and found the end"),
        ("mine:Mine", "expected the number of a device and found 'Mine'; name a class of your own with"),
        ("numpy:-1", "a device is a number from 0 on"),
        ("numpy:1.5", "a device is a number from 0 on"),
        ("numpy(a=)", r"expected a value and found '\)'"),
        ("numpy(a=1 b=2)", "expected ',' and found 'b'"),
        ("numpy(a=1, 2)", "expected the name of an option and found '2'"),
        ("numpy(a=1, a=2)", "the option 'a' is given twice"),
        ("autodiff:1(numpy)", r"write autodiff\(numpy:1\)"),
        ("autodiff(numpy, )x", "nothing may follow"),
        ("numpy-cpu", "nothing may follow, and '-' does"),
    ],
)
def test_invalid_expressions_say_why(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, b"numpy"])
def test_an_expression_is_a_string(value: Any) -> None:
    with pytest.raises(SpecError, match="is a string"):
        load_backend(value)


def test_loading_a_backend_object_is_refused() -> None:
    value: Any = load_backend("numpy")
    with pytest.raises(SpecError, match="<backend numpy>, which is a backend already"):
        load_backend(value)


# ---- loading ----


def test_the_same_expression_is_the_same_object() -> None:
    numpy = load_backend("numpy")
    once = load_backend("autodiff(numpy)")
    assert load_backend("numpy") is numpy
    assert load_backend(" autodiff ( numpy() ) ") is once
    assert once.inner_backend is numpy  # type: ignore[attr-defined]
    assert bb.Autodiff(numpy) is once
    twice = load_backend("autodiff(autodiff(numpy))")
    assert twice.inner_backend is once  # type: ignore[attr-defined]
    assert twice.spec == "autodiff(autodiff(numpy))"


@pytest.mark.parametrize("spec", ["numpy", "autodiff(numpy)", "autodiff(autodiff(numpy))"])
def test_backends_are_pickled_by_their_spec(spec: str) -> None:
    backend = load_backend(spec)
    assert backend.spec == spec
    assert pickle.loads(pickle.dumps(backend)) is backend


@pytest.mark.parametrize(
    ("spec", "suggestion"),
    [
        ("autodif(numpy)", "Did you mean 'autodiff(numpy)'?"),
        ("autodiff(nunpy)", "Did you mean 'autodiff(numpy)'?"),
        ("autodiff(Autodiff(numpy))", "Did you mean 'autodiff(autodiff(numpy))'?"),
        ("autodif(nunpy)", "Did you mean 'autodiff(numpy)'?"),
        ("Autodiff(NumpyBackend())", "Did you mean 'autodiff(numpy())'?"),
        ("NUMPY", "Did you mean 'numpy'?"),
        ("CUDA", "'autodiff(cupy:0)' computes on the first CUDA device"),
        ("autodif(quantum)", "Did you mean 'autodiff'?"),
        ("nunpy:1(a=2)", "Did you mean 'numpy:1(a=2)'?"),
        ("quantum", "autodiff, capture, cupy, "),
    ],
)
def test_a_wrong_name_gets_a_suggestion(spec: str, suggestion: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_backend(spec)
    assert suggestion in str(caught.value)
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize("spec", ["autodiff", "autodiff()", "autodiff(depth=2)"])
def test_a_decorator_alone_is_not_a_backend(spec: str) -> None:
    with pytest.raises(SpecError, match=r"autodiff wraps a backend: write autodiff\(numpy\)"):
        load_backend(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("numpy(autodiff)", "numpy wraps nothing"),
        ("null:0", "null does not take device 0"),
        ("numpy(threads=2)", "numpy does not take threads=2"),
        ("autodiff(numpy, depth=2)", "autodiff does not take depth=2"),
    ],
)
def test_unknown_options_and_devices_are_refused(spec: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_backend(spec)


def test_the_cpu_is_device_0(names) -> None:
    assert load_backend("numpy:0") is load_backend("numpy") is load_backend("numpy(device=0)")
    assert load_backend("autodiff(numpy:0)").spec == "autodiff(numpy)"
    assert load_backend("numpy:0(quantized=propagate)").spec == "numpy(quantized=propagate)"
    for spec in ("numpy:1", "autodiff(numpy:1)"):
        with pytest.raises(BackendUnavailableError, match="numpy:1: the CPU is one device, numpy:0 or numpy"):
            load_backend(spec)
    with pytest.raises(ArgumentError, match="numpy: a device is a number, not 'cpu'"):
        load_backend("numpy(device=cpu)")
    with pytest.raises(SpecError, match=r"write autodiff\(numpy:0\)"):  # a readable suggestion
        load_backend("autodiff:0(numpy)")


@pytest.mark.parametrize("spec", ["cupy", "cupy:1", "autodiff(cupy:0)"])
def test_a_cuda_backend_that_cannot_be_used_says_why_and_what_to_do(spec: str, monkeypatch) -> None:
    monkeypatch.setattr("backburn_cupy.detect.importlib.util.find_spec", lambda name: None)
    words = r"CuPy is not installed.*pip install 'backburn\[cuda12\]'.*'numpy'"
    with pytest.raises(BackendUnavailableError, match=words):
        load_backend(spec)


# ---- registered in this process ----


@pytest.fixture(autouse=True)
def names():
    """Start with the built-in names only, and remove those that a test registers."""
    before = dict(registry._registered)
    registry._registered.clear()
    yield
    registry._registered.clear()
    registry._registered.update(before)
    for spec in [s for s in registry._loaded if "toy" in s]:
        del registry._loaded[spec]


def toy(spec: str = "toy", **members: Any) -> Any:
    """Return a backend that has only a spec and a device."""

    class Toy(Backend[Any, Any, Any, Any]):
        device = members.pop("device", "cpu")

        @property
        def spec(self) -> str:
            return spec

    return Toy()


def test_device_and_options_reach_the_factory(names) -> None:
    calls = []

    def factory(device: int = 0, **options: Any) -> Any:
        calls.append((device, options))
        return toy(f"toy:{device}")

    register_backend("toy", factory)
    first = load_backend("toy:1(fast=true)")
    assert calls == [(1, {"fast": True})]
    assert load_backend("toy:1") is first, "the spec of the loaded backend loads it too"
    other = load_backend("toy:2")
    assert other is not first
    assert other != first
    assert calls[1:] == [(2, {})]


def test_registering_again_replaces_only_that_backend(names) -> None:
    register_backend("toy", lambda: toy())
    first, decorated, numpy = (load_backend(s) for s in ("toy", "autodiff(toy)", "autodiff(numpy)"))
    register_backend("toy", lambda: toy())
    assert load_backend("toy") is not first
    assert load_backend("autodiff(toy)") is not decorated
    assert load_backend("autodiff(numpy)") is numpy


def test_a_factory_must_return_a_backend_with_its_name(names) -> None:
    register_backend("toy", lambda: 3)
    with pytest.raises(SpecError, match=r"'toy' made int, which is not a backend: it lacks spec, "):
        load_backend("toy")
    register_backend("toy", lambda: toy("numpy"))
    with pytest.raises(SpecError, match=r"'toy' \(Toy\) has the spec 'numpy'"):
        load_backend("toy")


def test_a_factory_that_fails_says_why(names) -> None:
    def driver_missing() -> Any:
        raise RuntimeError("no driver")

    register_backend("toy", driver_missing)
    with pytest.raises(BackendUnavailableError, match=r"'toy': cannot be used here \(RuntimeError: no driver\)"):
        load_backend("autodiff(toy)")
    with pytest.warns(registry.BackendWarning, match="no driver"):
        (found,) = [b for b in list_backends() if b.name == "toy"]
    assert not found.usable
    assert "no driver" in found.reason


def test_a_backend_may_give_its_own_reason_for_being_unusable(names) -> None:
    def no_device() -> Any:
        raise BackendUnavailableError("toy: there is no device; plug one in")

    register_backend("toy", no_device)
    (found,) = [b for b in list_backends() if b.name == "toy"]
    assert (found.usable, found.reason) == (False, "toy: there is no device; plug one in")


@pytest.mark.parametrize("name", ["two words", "a-b", "3d", ""])
def test_names_must_fit_into_expressions(name: str) -> None:
    with pytest.raises(SpecError, match="register_backend"):
        register_backend(name, lambda: toy())


def test_an_autodiff_backend_that_differs_from_its_inner_one_is_refused(names) -> None:
    inner = toy()

    class Bad(AutodiffBackend[Any, Any, Any, Any, Any, Any]):
        spec = "toy"
        device = "elsewhere"
        inner_backend = inner

    register_backend("toy", Bad)
    with pytest.raises(BackendMismatchError, match=r"Bad \(device elsewhere\) wraps Toy \(device cpu\)"):
        load_backend("toy")


# ---- decorators registered in this process ----


class Toy(Wrapper):
    """Count the calls of each operation."""

    name = "toycount"

    def __init__(self, wrapped: Any, start: int = 0) -> None:
        super().__init__(wrapped)
        self.calls: Counter[str] = Counter()
        self.start = start

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        self.calls[operation] += 1
        return super().call(operation, *operands, **attributes)


def test_backends_with_different_options_need_different_specs(names) -> None:
    register_decorator("toycount", Toy)
    plain = load_backend("toycount(numpy)")
    words = r"start=3.*'toycount\(numpy\)', does not include start, and a backend with .*override spec in Toy"
    for spec in ("toycount(numpy, start=3)", "autodiff(toycount(numpy, start=3))"):
        with pytest.raises(SpecError, match=words):
            load_backend(spec)
    assert load_backend("toycount(numpy, start=0)") is load_backend("toycount( numpy )") is plain, "0 is the default"
    assert load_backend("numpy(quantized=inhibit)") is load_backend("numpy")

    class Telling(Toy):
        @property
        def spec(self) -> str:
            return f"toycount({self.wrapped.spec}, start={self.start})" if self.start else super().spec

    register_decorator("toycount", Telling)
    assert load_backend("toycount(numpy, start=3)") is load_backend("toycount( numpy, start=3 )")
    assert load_backend("toycount(numpy, start=3)") is not load_backend("toycount(numpy)")


def test_a_decorator_is_found_by_its_name_and_works_inside_autodiff(names) -> None:
    register_decorator("toycount", Toy)
    k = load_backend(" toycount ( numpy )")
    assert isinstance(k, Toy)
    assert load_backend("toycount(numpy)") is k
    assert k.wrapped is load_backend("numpy")
    assert pickle.loads(pickle.dumps(k)) is k
    with bb.use_backend("autodiff(toycount(numpy))"):
        x = bb.asarray([1.0, 2.0]).require_grad()
        before = k.calls["softmax"]
        assert x.grad(bb.softmax(x * x).sum().backward()) is not None
        assert k.calls["softmax"] == before + 1, "a derived operation is forwarded as one call"
        assert k.calls["softmax_backward"] == 1
        assert bb.hessian(lambda x: (x**3.0).sum())(x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    (found,) = [d for d in list_decorators() if d.name == "toycount"]
    assert (found.usable, found.decorates, found.target) == (True, True, f"{__name__}:Toy")


def test_user_defined_operations_are_forwarded(names) -> None:
    k = Toy(load_backend("numpy"))

    @bb.operation()
    def toy_double(k: Any, x: Any, /) -> Any:
        """Twice ``x``."""
        return k.add(x, x)

    try:
        assert toy_double(bb.ones(2, backend=k)).tolist() == [2.0, 2.0]
        assert k.calls["toy_double"] == 1
        assert "add" not in k.calls
    finally:
        withdraw("toy_double")


def test_a_wrapper_differentiates_nothing_and_captures_nothing() -> None:
    k = Toy(load_backend("autodiff(numpy)"))
    assert not is_autodiff(k)
    assert not k.capabilities.capture
    with pytest.raises(bb.errors.GraphError):
        bb.ones(2, backend=k).require_grad()


def test_a_decorator_takes_options_and_wraps_any_expression(names) -> None:
    register_decorator("toycount", Toy)
    for spec in ("toycount(autodiff(numpy))", "toycount(toycount(numpy))"):
        assert load_backend(spec).spec == spec
    with pytest.raises(SpecError, match="toycount does not take stop=1; it takes start"):
        load_backend("toycount(numpy, stop=1)")
    with pytest.raises(SpecError, match=r"toycount wraps a backend: write toycount\(numpy\)"):
        load_backend("toycount")
    with pytest.raises(SpecError, match=r"Did you mean 'toycount\(numpy\)'\?"):
        load_backend("toycount(nunpy)")
    with pytest.raises(SpecError, match=r"Did you mean 'toycount\(numpy\)'\?"):
        load_backend("toycnt(numpy)")


def test_registering_a_decorator_again_replaces_it(names) -> None:
    register_decorator("toycount", Toy)
    first, above = load_backend("toycount(numpy)"), load_backend("autodiff(toycount(numpy))")
    register_decorator("toycount", lambda inner: Toy(inner))
    assert load_backend("toycount(numpy)") is not first
    assert load_backend("autodiff(toycount(numpy))") is not above


@pytest.mark.parametrize("name", ["two words", "a-b", "3d", "", None])
def test_names_of_decorators_must_fit_into_expressions(name: Any) -> None:
    with pytest.raises(SpecError, match=r"register_decorator.*cannot stand in an expression"):
        register_decorator(name, Toy)


def test_a_name_is_a_backend_or_a_decorator(names) -> None:
    with pytest.raises(SpecError, match="register_decorator: 'numpy' is a backend already"):
        register_decorator("numpy", Toy)
    with pytest.raises(SpecError, match="register_backend: 'autodiff' is a decorator already"):
        register_backend("autodiff", lambda: toy())
    register_backend("toy", lambda: toy())
    with pytest.raises(SpecError, match="'toy' is a backend already"):
        register_decorator("toy", Toy)
    register_decorator("toycount", Toy)
    with pytest.raises(SpecError, match="'toycount' is a decorator already"):
        register_backend("toycount", lambda: toy())
    with pytest.raises(SpecError, match="what makes 'toys' is a decorator's class or a function, not 3"):
        register_decorator("toys", 3)


@pytest.mark.parametrize("spec", ["numpy", "toys", "toys()", "toys(cupy)"])
def test_the_spec_of_a_decorated_backend_names_the_inner_one(names, spec: str) -> None:
    register_decorator("toys", lambda inner: toy(spec))
    with pytest.raises(SpecError, match=r"it begins with 'toys\(numpy'"):
        load_backend("toys(numpy)")


def test_a_wrapper_says_what_it_lacks() -> None:
    class Nameless(Wrapper):
        pass

    with pytest.raises(SpecError, match="Nameless: give the class a name"):
        Nameless(load_backend("numpy"))
    with pytest.raises(TypeError, match="Toy wraps a backend, not 3"):
        Toy(3)


def test_a_wrapper_may_not_shadow_an_operation_with_an_attribute() -> None:
    class Logging(Toy):
        def __init__(self, wrapped: Any, log: bool = True) -> None:
            super().__init__(wrapped)
            self.log = log  # type: ignore[assignment,method-assign]

    with pytest.raises(ArgumentError, match="Logging: log is an operation; give the attribute another name"):
        Logging(load_backend("numpy"))


class Delegating:
    """A wrapper that forwards every attribute, but defines none on its class."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_members_must_be_defined_on_the_class(names) -> None:
    register_decorator("toys", Delegating)
    words = r"it lacks spec, dtype, capabilities, \w+ and \d+ more\. Members are looked for on the class.*Wrapper"
    with pytest.raises(SpecError, match=f"'toys' made Delegating, which is not a backend: {words}"):
        load_backend("toys(numpy)")
    delegating: Any = Delegating(load_backend("numpy"))
    for decorator in (bb.Autodiff, bb.Forward, Toy):
        with pytest.raises(TypeError, match=f"{decorator.__name__} wraps a backend, not .*{words}"):
            decorator(delegating)


def test_errors_name_the_example_backends_to_install(names, monkeypatch) -> None:
    monkeypatch.setattr(registry, "_entry_points", lambda group: [])
    root = Path(__file__).parents[2]
    for name, folder in registry.ADAPTERS.items():
        with pytest.raises(SpecError, match=f"pip install {folder}, from a clone"):
            load_backend(f"autodiff({name}:0)")
        assert f'\n{name} = "' in (root / folder / "pyproject.toml").read_text(), "the entry point has this name"


# ---- installed plugins ----


def install(folder: Path, name: str, *, modules: dict[str, str], points: dict[str, dict[str, str]]) -> None:
    """Write the files of an installed package: modules, and metadata with entry points."""
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    metadata = folder / f"{name}-0.3.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.3\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items()) for group, found in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(groups))


@pytest.fixture
def site(tmp_path: Path, monkeypatch):
    """A folder for installed packages on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    loaded = set(sys.modules)
    yield tmp_path
    for module in set(sys.modules) - loaded:
        if getattr(sys.modules[module], "__file__", "") and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]


BROKEN = {"modules": {"toy_broken": "import toy_missing"}, "points": {"backburn.backends": {"toy": "toy_broken:Toy"}}}


def test_a_broken_plugin_is_named_and_nothing_else_breaks(site: Path, names) -> None:
    install(site, "toy", **BROKEN)  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailableError, match=r"'toy': toy_broken could not be imported.*toy_missing"):
        load_backend("toy")
    with pytest.warns(registry.BackendWarning, match="toy_missing"):
        found = {b.name: b for b in list_backends()}
    assert found["toy"].distribution == "toy 0.3"
    assert found["toy"].target == "toy_broken:Toy"
    assert not found["toy"].usable
    assert found["numpy"].usable


def test_advice_for_a_plugin_that_raises_at_import(site: Path) -> None:
    """An error of backburn includes its own advice; any other error is the package's fault."""
    raises = "from backburn.errors import ArgumentError; raise ArgumentError('set TOY to 1')"
    install(site, "toy", modules={"toy_strict": raises}, points={"backburn.backends": {"toy": "toy_strict:Toy"}})
    with pytest.raises(BackendUnavailableError, match=r"\(ArgumentError: set TOY to 1\)$"):
        load_backend("toy")
    install(site, "other", modules={"other_broken": "1 / 0"}, points={"backburn.backends": {"other": "other_broken:T"}})
    with pytest.raises(BackendUnavailableError, match=r"division by zero\)\. Mend or uninstall its package$"):
        load_backend("other")


def test_a_broken_plugin_does_not_break_the_import(site: Path) -> None:
    install(site, "toy", **BROKEN)  # type: ignore[arg-type]
    path = os.pathsep.join([str(site), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import backburn as bb; print((bb.asarray([1.0]) + 1.0).tolist())"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2.0]\n", "")


def test_a_missing_attribute_is_a_broken_plugin(site: Path, names) -> None:
    install(site, "toy", modules={"toy_empty": ""}, points={"backburn.backends": {"toy": "toy_empty:Toy"}})
    with pytest.raises(BackendUnavailableError, match="AttributeError"):
        load_backend("toy")


@pytest.mark.parametrize("source", ["raise SystemExit(3)", "def Toy(*inner): raise SystemExit(3)"])
def test_a_plugin_that_raises_system_exit_is_broken(source: str, site: Path, names) -> None:
    points = {"backburn.backends": {"toy": "toy_ends:Toy"}, "backburn.decorators": {"wraps": "toy_ends:Toy"}}
    install(site, "toy", modules={"toy_ends": source}, points=points)
    with pytest.raises(BackendUnavailableError, match=r"'toy'.*SystemExit: 3"):
        load_backend("toy")
    with pytest.warns(registry.BackendWarning, match="'toy'.*SystemExit: 3"):
        (found,) = (b for b in list_backends() if b.name == "toy")
    assert not found.usable
    with pytest.raises(BackendUnavailableError, match=r"'wraps'.*SystemExit: 3"):
        load_backend("wraps(numpy)")


def test_an_interrupt_while_a_plugin_loads_propagates(site: Path, names) -> None:
    modules = {"toy_slow": "raise KeyboardInterrupt"}
    install(site, "toy", modules=modules, points={"backburn.backends": {"toy": "toy_slow:Toy"}})
    with pytest.raises(KeyboardInterrupt):
        list_backends()


def test_a_broken_decorator_is_listed(site: Path) -> None:
    install(site, "toy", modules={"toy_broken": "1 / 0"}, points={"backburn.decorators": {"toy": "toy_broken:Toy"}})
    with pytest.warns(registry.BackendWarning, match="ZeroDivisionError"):
        found = {d.name: d for d in registry.list_decorators()}
    assert found["autodiff"].usable
    assert found["autodiff"].decorates
    assert not found["toy"].usable
    with pytest.raises(BackendUnavailableError, match="ZeroDivisionError"):
        load_backend("toy(numpy)")


def test_an_installed_name_does_not_replace_a_built_in_one(site: Path) -> None:
    install(site, "toy", **{**BROKEN, "points": {"backburn.backends": {"numpy": "toy_broken:Toy"}}})  # type: ignore[arg-type]
    (found,) = [b for b in list_backends() if b.name == "numpy"]
    assert found.target == "backburn_numpy:NumpyBackend"
    assert found.usable


def test_plugins_can_be_switched_off(site: Path, monkeypatch) -> None:
    install(site, "toy", **BROKEN)  # type: ignore[arg-type]
    monkeypatch.setenv("BACKBURN_DISABLE_PLUGINS", "1")
    assert [b.name for b in list_backends()] == sorted(registry.BUILT_IN[registry.BACKENDS])
    with pytest.raises(SpecError, match="no backend is called 'toy'"):
        load_backend("toy")


def test_shipped_backends_need_no_metadata(monkeypatch) -> None:
    def no_metadata(**options: Any) -> Any:
        raise AssertionError("metadata were read")

    monkeypatch.setattr("importlib.metadata.entry_points", no_metadata)
    monkeypatch.setattr(registry, "_loaded", {})
    assert load_backend("autodiff(numpy)").spec == "autodiff(numpy)"


def test_the_package_of_a_backend_is_listed(monkeypatch) -> None:
    def points(group: str) -> list[Any]:
        dist = SimpleNamespace(name="backburn", version="9")
        return [SimpleNamespace(name="numpy", value="backburn_numpy:NumpyBackend", dist=dist)]

    monkeypatch.setattr(registry, "_entry_points", points)
    assert {b.name: b.distribution for b in list_backends()}["numpy"] == "backburn 9"


# ---- the default ----


def test_default_backend_comes_from_the_environment(monkeypatch) -> None:
    assert bb.default_backend().spec == "autodiff(numpy)"
    monkeypatch.setenv("BACKBURN_BACKEND", "numpy")
    assert bb.default_backend() is load_backend("numpy")
    with bb.use_backend("autodiff(autodiff(numpy))"):
        assert bb.default_backend().spec == "autodiff(autodiff(numpy))"
    monkeypatch.setenv("BACKBURN_BACKEND", "nunpy")
    with pytest.raises(SpecError, match="Did you mean 'numpy'"):
        bb.default_backend()


def test_a_device_name_is_not_a_backend() -> None:
    with pytest.raises(SpecError, match=r"called 'cpu'. A backend is a device here: 'autodiff\(numpy\)'"):
        load_backend("cpu")
