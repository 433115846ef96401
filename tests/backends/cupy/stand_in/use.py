"""Use the CuPy backend on the stand-in, even if the real CuPy is installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from backburn.backend import registry

HERE = Path(__file__).parent
#: Packages that are imported again on the stand-in, and removed afterwards.
PACKAGES = ("cupy", "cupy_backends", "cupyx", "cuda", "cudnn", "compiled", "fake_cublaslt", "backburn_cupy")


@contextlib.contextmanager
def standing_in() -> Iterator[Any]:
    """A context with the stand-in as the module ``cupy``, and an apparent CUDA driver."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in PACKAGES}
    sys.path.insert(0, str(HERE))
    try:
        import backburn_cupy.cudnn as cudnn
        import backburn_cupy.detect as detect

        known = {spec: k for spec, k in registry._loaded.items() if "cupy" not in spec}
        driver = mock.patch.object(detect, "driver", return_value="libcuda.so.1")
        loaded = mock.patch.object(registry, "_loaded", known)
        version = mock.patch.object(cudnn, "LIBRARY", "no library")  # a real one may be installed
        with loaded, driver, version, mock.patch.object(detect, "installed", return_value={}):
            import cupy

            yield cupy
    finally:
        sys.path.remove(str(HERE))
        for name in [n for n in sys.modules if n.partition(".")[0] in PACKAGES]:
            del sys.modules[name]
        sys.modules.update(kept)


def forget() -> None:
    """Clear the backend's caches of cuDNN: the library, plans and refusals."""
    from backburn_cupy import cudnn

    cudnn.found.cache_clear()
    cudnn.plan.cache_clear()
    cudnn.REFUSED.clear()
