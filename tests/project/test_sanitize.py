"""``tools/sanitize.py``: sanitizers find the planted faults, and nothing in correct code."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GCC = shutil.which("gcc")
pytestmark = pytest.mark.skipif(GCC is None or platform.system() != "Linux", reason="sanitizers need GCC on Linux")

SOURCE = """
#include <pthread.h>
#include <stdlib.h>
static int shared;
static void *add(void *lock) {
    for (int i = 0; i < 100000; i++) {
        if (lock) pthread_mutex_lock(lock);
        shared++;
        if (lock) pthread_mutex_unlock(lock);
    }
    return NULL;
}
int beside(int n) { volatile int *x = malloc(4 * n); x[n] = 1; free((void *)x); return 0; }
int within(int n) { volatile int *x = malloc(4 * n); x[n - 1] = 1; free((void *)x); return 0; }
int overflow(int n) { volatile int x = 0x7fffffff; return x + n; }
int race(int locked) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, add, locked ? &lock : NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return 0;
}
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("sanitize", ROOT / "tools" / "sanitize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


@pytest.mark.parametrize(
    ("name", "call", "is_found"),
    [
        *(("address", "within(7)", False), ("address", "beside(7)", True), ("address", "overflow(1)", True)),
        *(("thread", "race(1)", False), ("thread", "race(0)", True)),
    ],
)
def test_faults_are_found(tool: types.ModuleType, tmp_path: Path, name: str, call: str, is_found: bool) -> None:
    if any(tool.path_of(GCC, library) is None for library in tool.SANITIZERS[name].libraries):
        pytest.skip(f"{GCC} has no library for {name}")
    (tmp_path / name).mkdir()
    source, library = tmp_path / "faults.c", tmp_path / "faults.so"
    source.write_text(SOURCE)
    command = [
        str(tool.wrapper(name, GCC)),
        "-O1",
        "-fPIC",
        "-pthread",
        "-shared",
        "-s",
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    status = tool.python(name, GCC, "-c", f"import ctypes; ctypes.CDLL({str(library)!r}).{call}")
    assert (status != 0) is is_found


def test_missing_sanitizers_are_reported(
    tool: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "path_of", lambda compiler, library: None)
    monkeypatch.setattr("sys.argv", ["sanitize.py", "address", "thread"])
    assert tool.main() == 0
    said = capsys.readouterr().out
    assert f"address is left out: {GCC} has no libasan.so" in said
    assert f"thread is left out: {GCC} has no libtsan.so" in said
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert tool.main() == 0
    assert "nothing was run" in capsys.readouterr().out


def test_a_wrong_name_is_refused(tool: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sanitize.py", "memory"])
    with pytest.raises(SystemExit):
        tool.main()
