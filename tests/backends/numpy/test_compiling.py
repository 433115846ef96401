"""The build of the compiled kernels: compilers, rejected libraries, the command, and the package's build hook."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import BASE, USABLE, needs_kernels, python

from backburn.backend import BackendWarning
from backburn_numpy import compiled
from backburn_numpy.compiled import build

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

#: The best usable instruction set.
BEST = USABLE[-1] if USABLE else ""

SHOW = "from backburn_numpy import compiled; print(compiled.level())"


# ---- the environment ----


def test_the_environment_disables_kernels() -> None:
    assert python("-c", SHOW, BACKBURN_COMPILED="0").stdout.strip() == "None"
    for unset in ("", "1", "zig"):
        assert python("-c", SHOW, BACKBURN_COMPILED=unset).stdout.strip() == str(compiled.level())
    refused = python("-c", SHOW, BACKBURN_COMPILED="yes")
    assert "BACKBURN_COMPILED='yes': 0 leaves the compiled kernels out, 1 uses them, and " in refused.stderr


@pytest.mark.parametrize("level", USABLE)
def test_the_environment_sets_the_highest_instruction_set(level: str) -> None:
    assert python("-c", SHOW, BACKBURN_COMPILED=level).stdout.strip() == level


@needs_kernels
def test_info_names_the_kernels_and_their_compiler() -> None:
    words = BASE.libraries["kernels"].split()
    assert words[:3] == ["compiled", "for", str(compiled.level())]
    assert words[3] == "by"
    assert words[4] in ("GCC", "Clang", "zig")
    assert words[5][0].isdigit()
    done = python("-m", "backburn", "info", BACKBURN_COMPILED="0")
    assert "none, NumPy computes: BACKBURN_COMPILED=0" in done.stdout


# ---- compilers ----


def without_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ziglang" else find(name))


def with_zig(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Pretend that a package ziglang without its program is installed; returns the program's path."""
    package = folder / "ziglang"
    spec = importlib.util.spec_from_file_location("ziglang", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(metadata, "version", lambda name: "0.99")
    return package / "zig"


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(build.NoCompilerError, match="/nowhere/cc"):
        build.build(tmp_path)
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    without_zig(monkeypatch)
    with pytest.raises(build.NoCompilerError, match=re.escape(build.REMEDY)):
        build.build(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="the compilers of this test are shell scripts")
def test_zig_is_the_last_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    zig = with_zig(monkeypatch, tmp_path)
    found = build.find_compiler()
    assert found.is_zig
    assert found.words[:4] == [str(zig), "cc", "-target", build.host()]
    assert '-DBACKBURN_COMPILER="zig 0.99"' in found.words
    for name in ("clang", "gcc", "cc"):  # from the last choice to the first
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert build.find_compiler() == build.Compiler([str(tmp_path / name)])
    monkeypatch.setenv("CC", "mycc -m64")
    assert build.find_compiler() == build.Compiler(["mycc", "-m64"])


def test_zig_cross_compiles_and_can_be_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zig = with_zig(monkeypatch, tmp_path)
    assert build.find_compiler("aarch64-linux-musl").words[:4] == [str(zig), "cc", "-target", "aarch64-linux-musl"]
    monkeypatch.setenv("BACKBURN_COMPILED", "zig")
    assert build.find_compiler().is_zig
    with pytest.raises(build.NoCompilerError, match="'mips-linux' is not a machine to compile for: x86_64-linux-gnu"):
        build.build(tmp_path, target="mips-linux")
    without_zig(monkeypatch)
    for target in (None, "x86_64-windows-gnu"):
        with pytest.raises(build.NoCompilerError, match="pip install ziglang"):
            build.build(tmp_path, target=target)


@pytest.mark.parametrize(
    ("system", "machine", "libc", "expected"),
    [
        ("Linux", "x86_64", "glibc", "x86_64-linux-gnu.2.17"),
        ("Linux", "aarch64", "", "aarch64-linux-musl"),
        ("Darwin", "arm64", "", "aarch64-macos.11.0"),
        ("Windows", "AMD64", "", "x86_64-windows-gnu"),
        ("Linux", "riscv64", "glibc", "native"),
        ("FreeBSD", "x86_64", "", "native"),
    ],
)
def test_targets_of_hosts(system: str, machine: str, libc: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    assert build.host() == expected


def test_compiler_commands_follow_the_system_s_quoting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setenv("CC", r'"C:\My tools\gcc.exe" -m64')
    with pytest.raises(build.NoCompilerError, match=r"'C:\\My tools\\gcc\.exe' -m64 -std=c11"):
        build.build(tmp_path)


def test_sources_that_do_not_compile_leave_no_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong.c"
    wrong.write_text("this is not C")
    monkeypatch.setattr(build, "SOURCES", [wrong])
    with pytest.raises(build.NoCompilerError, match=r"wrong\.c"):
        build.build(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([wrong, *build.libraries(tmp_path).values()])
    assert list(build.libraries(tmp_path)) == ["processor"]


@pytest.mark.skipif(os.name != "posix", reason="the compilers of this test are shell scripts")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "sh .*processor.c"),
        (r"printf '\377' >&2; exit 1", "\ufffd"),
        ('for last; do [ "$before" = -o ] && echo text > "$last"; before=$last; done', "cannot be loaded"),
    ],
    ids=["writes no output", "writes another encoding", "compiles for another machine"],
)
def test_a_compiler_without_a_loadable_result_is_an_error(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cc").write_text(script)
    monkeypatch.setenv("CC", f"sh {tmp_path / 'cc'}")
    with pytest.raises(build.NoCompilerError, match=message):
        build.build(tmp_path, only_best=True)


@pytest.mark.skipif(os.name != "posix", reason="the compiler of this test is a shell script")
def test_gcc_on_windows_uses_no_vectors_wider_than_the_stack_alignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (tmp_path / "cc").write_text('for last; do [ "$before" = -o ] && echo text > "$last"; before=$last; done')
    monkeypatch.setenv("CC", f"sh {tmp_path / 'cc'}")
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    build.build(made)
    assert set(build.libraries(made)) == {"processor", "x86-64", "x86-64-v3", "x86-64-v4"}
    for path in made.iterdir():
        path.unlink()
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    build.build(made)
    assert set(build.libraries(made)) == {"processor", "x86-64"}
    found = build.Compiler(build.find_compiler().words, is_zig=True)
    monkeypatch.setattr(build, "find_compiler", lambda target: found)
    build.build(made)
    assert set(build.libraries(made)) == {"processor", "x86-64", "x86-64-v3", "x86-64-v4"}


# ---- libraries ----


@pytest.fixture
def one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single source, to compile quickly: these tests are about which libraries exist."""
    monkeypatch.setattr(build, "SOURCES", [build.FOLDER / "convolution" / "max_pool.c"])


@needs_kernels
@pytest.mark.usefixtures("one_source")
def test_an_installed_wheel_has_libraries_and_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries are found by name, whatever sources they were compiled from."""
    made = build.build(tmp_path, only_best=True)
    monkeypatch.setattr(build, "SOURCES", [])
    monkeypatch.setattr(build, "edition", lambda: pytest.fail("there are no sources to hash"))
    assert list(build.libraries(tmp_path)) == ["processor", build.supported_levels(tmp_path)[-1]] or len(made) == 2
    assert sorted(build.libraries(tmp_path).values()) == sorted(made)
    with pytest.raises(build.NoCompilerError, match="no sources to compile"):
        build.build(tmp_path)


@needs_kernels
@pytest.mark.usefixtures("one_source")
def test_libraries_of_other_sources_are_removed_and_never_loaded(tmp_path: Path) -> None:
    (tmp_path / f"x86-64-00000000-00000000{build.SUFFIX}").touch()
    (tmp_path / f"processor-{build.edition()}-00000000{build.SUFFIX}").touch()
    best = build.build(tmp_path, only_best=True)
    assert sorted(tmp_path.iterdir()) == sorted(best)
    assert set(build.libraries(tmp_path)) == {"processor", build.supported_levels(tmp_path)[-1]}
    made = build.build(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(made)
    assert set(build.libraries(tmp_path)) == {"processor", *build.levels()}


@pytest.mark.skipif(os.name == "nt", reason="the compiler of this test is a shell script")
def test_compilation_stops_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, script = tmp_path / "log", tmp_path / "my cc"
    script.write_text(f"#!/bin/sh\necho >> '{log}'\nsleep 0.05\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", f"'{script}' -m64")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(build.NoCompilerError, match="my cc' -m64"):
        build._compiled(build.find_compiler(), {"base": ()}, build.SOURCES, tmp_path)
    assert len(log.read_text()) < len(build.SOURCES)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(build.NoCompilerError, match="no folder for what the compiler makes"):
        build._compiled(build.find_compiler(), {"base": ()}, build.SOURCES, tmp_path)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_is_named() -> None:
    if USABLE:
        with pytest.raises(build.NoCompilerError, match=r"the folder of the kernels cannot be written: .*/proc/self"):
            build.build(Path("/proc/self"))


# ---- a copy of the backend with unusable libraries ----


class Installed:
    """A copy of the backend's package, and the warnings of a process that computes with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "backburn_numpy" / "compiled"
        shutil.copytree(build.FOLDER.parent, folder / "backburn_numpy", ignore=shutil.ignore_patterns("__pycache__"))
        self.path = os.pathsep.join((str(folder), *sys.path))

    def __getitem__(self, level: str) -> Path:
        (found,) = self.folder.glob(f"{level}-????????-*{build.SUFFIX}")
        return found

    def replace(self, level: str, content: bytes) -> None:
        """Replace a library by other bytes, under a name with their hash."""
        old = self[level]
        old.write_bytes(content)
        old.rename(old.with_name(f"{level}-{build.edition()}-{build._hash(old)}{build.SUFFIX}"))

    def warning(self, allowed: str = "") -> str:
        """The only warning of a process that computes with NumPy alone; empty without one."""
        code = (
            "import backburn as bb; from backburn_numpy import compiled;"
            "print(compiled.level(), bb.exp(bb.zeros(5000)).sum().item())"
        )
        done = python("-c", code, PYTHONPATH=self.path, BACKBURN_BACKEND="numpy", BACKBURN_COMPILED=allowed)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "None 5000.0\n"
        assert done.stderr.count("Warning") <= 1, done.stderr
        return done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@needs_kernels
@pytest.mark.parametrize("name", ["processor", BEST])
@pytest.mark.parametrize("damage", ["half", "a bit", "nothing left"])
def test_a_damaged_library_is_not_loaded(name: str, damage: str, installed: Installed) -> None:
    """Loading half a library would end the process by a signal."""
    whole = installed[name].read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    damaged = {"half": whole[: len(whole) // 2], "a bit": bytes(flipped), "nothing left": b""}
    installed[name].write_bytes(damaged[damage])
    assert f"{name}-" in (said := installed.warning())
    assert "is damaged: its contents are not those that were compiled" in said


@needs_kernels
def test_an_unrelated_library_is_not_used(installed: Installed) -> None:
    best = USABLE[-1]
    ours = installed[best].read_bytes()
    installed.replace(best, installed["processor"].read_bytes())
    assert "is another program's: it has no backburn_pool_reset" in installed.warning()
    installed.replace("processor", ours)
    assert "is another program's: it has no backburn_level" in installed.warning()


@needs_kernels
@pytest.mark.parametrize("name", ["processor", BEST])
@pytest.mark.parametrize("kind", ["architecture", "system", "any bytes"])
def test_a_library_that_the_system_cannot_load_is_not_used(name: str, kind: str, installed: Installed) -> None:
    """The hash in the name is correct, as for libraries of another platform's wheel."""
    ours = installed[name].read_bytes()
    if kind == "architecture" and ours[:4] != b"\x7fELF":
        pytest.skip("libraries of this system are not ELF files")
    other = {
        "architecture": ours[:18] + (183 if ours[18] == 62 else 62).to_bytes(2, "little") + ours[20:],
        "system": b"MZ" + ours[2:],
        "any bytes": np.random.default_rng(3).bytes(len(ours)),
    }
    installed.replace(name, other[kind])
    assert "compiled kernels are not used, and NumPy computes" in installed.warning()


@needs_kernels
@pytest.mark.parametrize("name", [BEST, "gemm/gemm.c"])
def test_unreadable_files_are_not_used(name: str, installed: Installed) -> None:
    """A folder stands for an unreadable file, because an administrator can read any file."""
    path = installed.folder / name if name.endswith(".c") else installed[name]
    path.unlink()
    path.mkdir()
    said = installed.warning()
    assert "compiled kernels are not used, and NumPy computes" in said
    assert str(path) in said


@needs_kernels
@pytest.mark.skipif(len(USABLE) < 2, reason="this processor supports only the lowest instruction set")
def test_kernels_above_the_allowed_instruction_set_are_not_used(installed: Installed) -> None:
    for lower in USABLE[:-1]:
        installed[lower].unlink()
    said = installed.warning(allowed=USABLE[0])
    assert f"BACKBURN_COMPILED='{USABLE[0]}' leaves out those here, which are for {USABLE[-1]}" in said


@needs_kernels
def test_libraries_for_newer_processors_are_not_used(installed: Installed) -> None:
    for level in build.libraries().keys() - {"processor"}:  # also those that this processor cannot run
        path = installed[level]
        path.rename(path.with_name(path.name.replace(level, f"{level}-of-tomorrow", 1)))
    able = ", ".join(build.supported_levels())
    assert f"those here are for no processor; this one has {able}" in installed.warning()


@needs_kernels
def test_a_wheel_for_a_newer_processor_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with only the lowest instruction set, with a library for the highest."""
    names, found = list(build.levels()), build.libraries()
    monkeypatch.setattr(compiled, "supported_levels", lambda: names[:1])
    monkeypatch.setattr(compiled, "levels", lambda: dict.fromkeys([*names, "x86-64-v9"], ()))
    monkeypatch.setattr(compiled, "libraries", lambda: {"processor": found["processor"], "x86-64-v9": Path("any")})
    with pytest.warns(BackendWarning, match=f"those here are for x86-64-v9; this one has {names[0]}$"):
        assert compiled._load()[0] is None


@needs_kernels
def test_the_best_available_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = build.supported_levels()
    monkeypatch.setattr(compiled, "supported_levels", lambda: [*names, "x86-64-v9"])
    found = compiled._load()[0]
    assert found is not None
    assert found[0] == USABLE[-1]


@needs_kernels
def test_an_installation_without_kernels_is_silent_and_names_the_remedy(installed: Installed) -> None:
    for path in installed.folder.glob(f"*{build.SUFFIX}"):
        path.unlink()
    assert not installed.warning()
    done = python("-m", "backburn", "info", PYTHONPATH=installed.path, BACKBURN_COMPILED="")
    assert f"none, NumPy computes: they are not compiled; {build.REMEDY}" in done.stdout
    for path in installed.folder.rglob("*.[ch]"):
        path.unlink()
    assert f"no library processor-*{build.SUFFIX}" in installed.warning()


# ---- the command ----


def test_the_command_reports_why_nothing_is_compiled() -> None:
    result = python("-m", "backburn_numpy.compiled", CC="/nowhere/cc", BACKBURN_COMPILED="")
    assert result.returncode == 1
    assert "The kernels are not compiled: /nowhere/cc" in result.stderr


# ---- the package's build hook ----


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook without hatchling; its ``warnings`` are those that it would display."""
    interface: Any = types.ModuleType("hatchling.builders.hooks.plugin.interface")

    class Interface:
        root, target_name = str(ROOT), "wheel"

        def __init__(self) -> None:
            self.warnings: list[str] = []
            self.app = types.SimpleNamespace(display_warning=self.warnings.append)

        def __class_getitem__(cls, item: object) -> type:
            return cls

    interface.BuildHookInterface = Interface
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for variable in ("BACKBURN_COMPILED", "BACKBURN_COMPILED_LEVELS", "BACKBURN_COMPILED_TARGET", "CC"):
        monkeypatch.setenv(variable, "")
    return module.CompileKernels()


def made(hook: Any) -> dict[str, Any]:
    """The build data that the hook sets."""
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    hook.finalize("standard", data, "")
    return data


def test_a_wheel_without_a_compiler_has_the_sources_and_names_the_remedy(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without_zig(monkeypatch)
    data = made(hook)
    assert "tag" not in data
    assert {Path(name).name for name in data["force_include"]} == {
        path.name for path in (*build.SOURCES, *build.HEADERS, build.PROCESSOR)
    }
    (line,) = hook.warnings
    assert "\n" not in line
    assert build.REMEDY in line
    assert hook.dependencies() == []
    monkeypatch.setenv("BACKBURN_COMPILED", "0")
    assert made(hook).keys() == {"force_include"}
    assert len(hook.warnings) == 1


def test_a_wheel_compiled_by_zig_requires_it(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_zig(monkeypatch)
    for name, value in (("BACKBURN_COMPILED", "zig"), ("BACKBURN_COMPILED_TARGET", "aarch64-linux-musl")):
        with monkeypatch.context() as within:
            within.setenv(name, value)
            assert hook.dependencies() == ["ziglang"]
            with pytest.raises(RuntimeError, match="pip install ziglang"):
                made(hook)


@pytest.mark.skipif(os.name != "posix", reason="the compiler of this test is a shell script")
def test_a_wheel_has_the_libraries_and_the_tag_of_their_machine(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zig = with_zig(monkeypatch, tmp_path)
    zig.parent.mkdir()
    zig.write_text('#!/bin/sh\nfor last; do [ "$before" = -o ] && echo text > "$last"; before=$last; done\n')
    zig.chmod(0o755)
    for target, tag in build.TARGETS.items():
        monkeypatch.setenv("BACKBURN_COMPILED_TARGET", target)
        data = made(hook)
        assert data["tag"] == f"py3-none-{tag}"
        assert data["pure_python"] is False
        levels = {Path(name).name.rsplit("-", 2)[0] for name in data["force_include"].values()}
        assert levels == {"processor", *build.levels(target.partition("-")[0])}


@needs_kernels
@pytest.mark.usefixtures("one_source")
def test_libraries_of_an_earlier_installation_are_reused(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_into: list[Path] = []

    def compile_all(folder: Path, **options: Any) -> list[Path]:
        compiled_into.append(folder)
        return original(folder)

    original = build.build
    monkeypatch.setattr(hook, "root", str(tmp_path))
    monkeypatch.setattr(hook, "build_module", lambda: build)
    monkeypatch.setattr(build, "build", compile_all)
    sources = tmp_path / "backends" / "backburn_numpy" / "compiled"
    sources.mkdir(parents=True)
    hook.initialize("editable", {})
    hook.initialize("editable", {})
    assert compiled_into == [sources]
    monkeypatch.setenv("BACKBURN_COMPILED_LEVELS", "all")
    wanted = {f"backburn_numpy/compiled/{path.name}" for path in sources.iterdir()}
    assert {*made(hook)["force_include"].values()} == wanted
    assert compiled_into == [sources]
    for variable, value in (("CC", "cc"), ("BACKBURN_COMPILED", "1")):  # the user requests a compiler, or compilation
        with monkeypatch.context() as within:
            within.setenv(variable, value)
            hook.initialize("editable", {})
    assert compiled_into == [sources] * 3
    build.libraries(sources)["processor"].write_bytes(b"damaged")
    hook.initialize("editable", {})
    assert compiled_into == [sources] * 4
