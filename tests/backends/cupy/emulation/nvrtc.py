"""NVRTC through ctypes: compiles CUDA C++ for an architecture without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: Options that CuPy adds.
CUPYS = ("-ftz=true", "--device-as-default-execution-space")


def candidates() -> Iterator[str]:
    """Possible paths of the library: in the wheels of CUDA 13 and 12, or in the system."""
    for package, folder in (("nvidia.cu13", "lib"), ("nvidia.cuda_nvrtc", "lib")):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for place in spec.submodule_search_locations or () if spec else ():
            yield from (str(path) for path in sorted(Path(place, folder).glob("libnvrtc.so.*")))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12")


@cache
def library() -> ctypes.CDLL | None:
    """NVRTC; None if it is not installed."""
    for name in candidates():
        try:
            # NVRTC looks for its second library by name, and finds it if it is loaded.
            for builtins in Path(name).parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def missing() -> str | None:
    """Why kernels cannot be compiled; None if they can."""
    return None if library() else "NVRTC is not installed (pip install nvidia-cuda-nvrtc, or the extra cuda-check)"


def version() -> tuple[int, int]:
    """NVRTC's version."""
    nvrtc, major, minor = library(), ctypes.c_int(), ctypes.c_int()
    assert nvrtc
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compiled(text: str, options: tuple[str, ...], expressions: list[str]) -> tuple[bytes, list[str], str]:
    """The compiled code of ``text``, the lowered names of ``expressions``, and the compiler's log.

    The option ``-arch=sm_90`` selects machine code, ``-arch=compute_90`` PTX.

    Raises RuntimeError with the compiler's messages.
    """
    nvrtc = library()
    assert nvrtc
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()

    def call(function: str, *arguments: object) -> int:
        return int(getattr(nvrtc, function)(*arguments))

    if status := call("nvrtcCreateProgram", ctypes.byref(handle), text.encode(), b"kernels.cu", 0, None, None):
        raise RuntimeError(nvrtc.nvrtcGetErrorString(status).decode())
    try:
        for expression in expressions:
            call("nvrtcAddNameExpression", handle, expression.encode())
        encoded = [option.encode() for option in options]
        status = call("nvrtcCompileProgram", handle, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        size = ctypes.c_size_t()
        call("nvrtcGetProgramLogSize", handle, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        call("nvrtcGetProgramLog", handle, log)
        said = log.value.decode()
        if status:
            raise RuntimeError(f"{nvrtc.nvrtcGetErrorString(status).decode()}\n{said[:4000]}")
        names = []
        for expression in expressions:
            lowered = ctypes.c_char_p()
            if call("nvrtcGetLoweredName", handle, expression.encode(), ctypes.byref(lowered)):
                raise RuntimeError(f"the program has no kernel {expression}")
            names.append((lowered.value or b"").decode())
        form = "PTX" if any("=compute_" in option for option in options) else "CUBIN"
        call(f"nvrtcGet{form}Size", handle, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        call(f"nvrtcGet{form}", handle, code)
        return code.raw, names, said
    finally:
        call("nvrtcDestroyProgram", ctypes.byref(handle))
