"""Calls every operation of the CuPy backend through the real CuPy, and prints failures as JSON.

Run ``python -m tests.backends.cupy.on_host.walk`` with a driver from ``patched.build`` in LD_LIBRARY_PATH.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tests.backends.cupy.on_host import patched

#: The number of samples per operation, each in these dtypes (or in its first, if it supports neither).
SAMPLES_OF_EACH, DTYPES = 6, ("float32", "bfloat16")

#: Operations whose result shapes depend on values, which are not computed.
OF_VALUES = ("nonzero", "masked_select", "unique_all")


def is_of_values(name: str, error: Exception) -> bool:
    """Whether an operation rejects values, which are not computed."""
    from backburn.base.errors import ArgumentError, NumericalInstabilityError

    return isinstance(error, NumericalInstabilityError) or ("quantize" in name and isinstance(error, ArgumentError))


def backend() -> Any:
    """The CuPy backend, with the stand-in for cuBLASLt."""
    import cupy
    from tests.backends.cupy.stand_in.compiled import HERE, shared

    from backburn_cupy import CupyBackend, cublaslt, detect

    vars(detect).update(check_compiler=lambda _: None, driver=lambda: patched.NAME)
    version = cupy.cuda.runtime.runtimeGetVersion() // 1000
    products = (HERE / "prelude.h").read_text() + (HERE / "cublaslt.cpp").read_text()
    assert "120901" in products
    products = products.replace("120901", f"{version}0000")  # the version of CuPy's CUDA
    library = ctypes.CDLL(str(shared(products)))
    vars(cublaslt).update(_candidates=lambda _: iter([library]))
    return CupyBackend()


class Walk:
    """The calls, and their failures."""

    def __init__(self, host: Any) -> None:
        import cupy

        self.host, self.cupy, self.k = host, cupy, backend()
        self.stream, self.pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        self.calls = 0
        self.failed: dict[str, str] = {}
        self.lacking: dict[str, str] = {}
        self.refused: dict[str, str] = {}

    def reversed(self, x: Any) -> Any:
        """``x`` as a strided view, with its last axis reversed in memory."""
        if not isinstance(x, self.cupy.ndarray):
            return x
        wide = self.cupy.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1) if x.ndim else (3,), x.dtype)
        view = wide[..., 1:][..., ::-2] if x.ndim else wide[1:2].reshape(())
        view[...] = x
        return view

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls inside, and drop the recording."""
        from backburn.backend.host_numbers import RECORDING_STEP, Recording
        from backburn.base.contexts import scoped

        with self.stream, self.cupy.cuda.using_allocator(self.pool.malloc), scoped(RECORDING_STEP, Recording()):
            self.stream.begin_capture()
            try:
                yield
            finally:
                self.stream.end_capture()

    def go(self) -> None:
        """Call each operation with its samples: contiguous, as views, and during a recording."""
        from backburn.conformance import SAMPLES
        from backburn.conformance.samples.calls import dtypes_of
        from backburn.conformance.samples.derived.complex_operands import complex_samples

        for name, samples in SAMPLES.items():
            every = []
            for i, sample in enumerate(samples.cases[:SAMPLES_OF_EACH]):
                possible = dtypes_of(name, sample, self.k)
                every += [(i, sample, d) for d in [d for d in DTYPES if d in possible] or possible[:1]]
            every += [(i, sample, "complex64") for i, sample in complex_samples(name)[:SAMPLES_OF_EACH]]
            for i, sample, dtype in every:
                where = f"{name} {i} {dtype}"
                if name not in OF_VALUES:
                    self.call(where, samples, sample, dtype)
                    self.call(f"{where} of views", samples, sample, dtype, self.reversed)
                if name not in self.lacking:
                    self.record(name, sample, dtype)

    def inputs(self, sample: Any, dtype: str, lay: Callable[[Any], Any] = lambda x: x) -> list[Any]:
        """The operands of a sample on the device, each array passed through ``lay``."""
        from backburn.conformance.samples.calls import arrays, map_operands, store_quantized

        return store_quantized(
            self.k, map_operands(map_operands(arrays(sample, dtype), self.k.from_numpy), lay, self.cupy.ndarray)
        )

    def call(
        self, where: str, samples: Any, sample: Any, dtype: str, lay: Callable[[Any], Any] = lambda x: x
    ) -> None:  # fmt: skip
        """Call an operation, and check the dtypes and shapes of its results; values are not computed."""
        from backburn.base.errors import BackendUnavailableError
        from backburn.conformance.samples.calls import arrays, as_tuple, expected_of, promised_dtypes
        from backburn.ops.table import OPERATIONS

        self.calls += 1
        name = samples.name
        try:
            results = as_tuple(getattr(self.k, name)(*self.inputs(sample, dtype, lay), **sample.attributes))
        except BackendUnavailableError as error:
            self.lacking.setdefault(name, str(error))
            return
        except Exception as error:
            # The library is installed, but finds no device.
            if "NOT_INITIALIZED" in str(error) or "CUFFT_INTERNAL_ERROR" in str(error):
                self.lacking.setdefault(name, str(error))
            elif not is_of_values(name, error):
                self.failed[where] = f"{type(error).__name__}: {error}"[:300]
            return
        finally:
            self.problems(where)
        operation = OPERATIONS[name]
        if operation.results == ("host",) or operation.shape is None:
            return
        operands = arrays(sample, dtype)
        expected = expected_of(samples, sample, operands)
        dtypes = promised_dtypes(operation, operands, sample.attributes, len(expected))
        for result, reference, wanted in zip(results, expected, dtypes, strict=True):
            if (wanted is not None and self.k.dtype(result) is not wanted) or result.shape != reference.shape:
                self.failed[where] = f"{self.k.dtype(result)}{result.shape} instead of {wanted}{reference.shape}"

    def record(self, name: str, sample: Any, dtype: str) -> None:
        """Call an operation during a recording."""
        from backburn.base.errors import CaptureError

        try:
            inputs = self.inputs(sample, dtype)
            with self.recording():
                getattr(self.k, name)(*inputs, **sample.attributes)
        except CaptureError as error:
            self.refused[name] = str(error)
        except Exception as error:
            if not is_of_values(name, error):
                self.failed[f"{name}, recorded"] = f"{type(error).__name__}: {error}"[:300]
        self.problems(f"{name}, recorded")

    def attend(self) -> None:
        """Attention with head sizes that the kernels support; those of the samples are not."""
        from backburn.base import dtypes

        k: Any = self.k
        where = "attention by kernels"
        for dtype, mask in ((dtypes.bfloat16, None), (dtypes.float16, k.full((70, 50), True, dtypes.bool_))):
            query, key, value = (k.zeros((2, 3, n, 64), dtype) for n in (70, 50, 50))
            with self.recording() if mask is None else contextlib.nullcontext():
                y = k.scaled_dot_product_attention(query, key, value, mask)
                grads = k.scaled_dot_product_attention_backward(y, query, key, value, mask, None, y)
            if [g.shape for g in grads] != [x.shape for x in (query, key, value)]:
                self.failed[where] = f"the gradients have the shapes {[g.shape for g in grads]}"
        if not any(name.startswith("attend_backward_keys<float16, 64") for name in k.runner._functions):
            self.failed[where] = "no attention kernel was launched"
        self.problems(where)

    def join(self) -> None:
        """A function with a pass, with sums of rows, of columns and of all elements, and other calls."""
        import backburn as bb

        where = "passes"

        def function(x: Any, scale: Any) -> Any:
            y = (x - x.mean(axis=-1, keepdims=True)) * scale
            return bb.exp(y), y.sum(axis=0), y.sum(), bb.softmax(y, axis=-1)

        captured = bb.capture(function, state=False, on_fallback="error")
        x, scale = bb.ones((40, 33), backend="capture(cupy)"), bb.ones(33, backend="capture(cupy)")
        shapes = [[out.shape for out in captured(x, scale)] for _ in range(3)][-1]
        if shapes != [(40, 33), (33,), (), (40, 33)]:
            self.failed[where] = f"the results have the shapes {shapes}"
        if not any(name.startswith("pass_") for name in self.k.runner._functions):
            self.failed[where] = "no pass was launched"
        self.problems(where)

    def keep(self) -> None:
        """Check that external memory which a recorded step reads lives exactly as long as the recording."""
        from backburn.backend.host_numbers import RECORDING_STEP, Recording
        from backburn.base import dtypes
        from backburn.base.contexts import scoped

        used, where = self.cupy.get_default_memory_pool().used_bytes, "memory from elsewhere"
        x, tables = self.k.ones((1000,), dtypes.float32), [self.k.ones((1000,), dtypes.float32)]
        with scoped(RECORDING_STEP, Recording()):
            made = self.k.capture(lambda state, _: ([self.k.add(state[0], tables[0])], []), [x], [])
        before = used()
        tables.clear()
        if used() != before:
            self.failed[where] = "it is freed while the recording lives"
        del made
        gc.collect()
        if used() == before:
            self.failed[where] = "it is never freed"

    def problems(self, where: str) -> None:
        """Record the driver's reports as failures."""
        if words := self.host.host_problems().decode():
            self.failed[where] = words.strip()[:300]
            self.host.host_forget()


def main() -> None:
    """Walk, and print the results."""
    warnings.simplefilter("error")
    walk = Walk(patched.install())
    walk.attend()
    walk.join()
    walk.keep()
    walk.go()
    found = {"calls": walk.calls, "launches": walk.host.host_launches(), "failed": walk.failed}
    print(json.dumps({**found, "lacking": walk.lacking, "refused": walk.refused}))


if __name__ == "__main__":
    main()
