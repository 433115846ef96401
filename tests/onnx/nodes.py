"""The node tests of the installed package onnx, on any backend.

``python -m tests.onnx.nodes numpy "autodiff(capture(numpy))" torch`` runs all of them on these backends and prints how
many pass, and the reasons of those that do not; it fails if the outcomes differ from :data:`EXCEPTIONS`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import pkgutil
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb

_EXAMPLE = Path(__file__).parents[2] / "examples" / "backends" / "backburn_torch"

#: Names of tests that must not pass, and why.
EXCEPTIONS = {
    r"test_(adagrad|adam|momentum|nesterov_momentum)(_multiple)?": "the domain of training",
    r"test_ai_onnx_ml_.*": "the domain ai.onnx.ml",
    r"test_cast(like)?_(no_saturate_|e8m0_)?FLOAT(16)?_to_FLOAT(8|4)\w+": "nothing rounds to floats of 8 or 4 bits",
    r"test_quantizelinear_(e4m3fn|e5m2|float4e2m1)": "nothing rounds to floats of 8 or 4 bits",
    r"test_(string|strnormalizer|regex|equal_string|tfidf)\w*": "text",
    r"test_image_decoder_.*": "files of images",
    r"test_bernoulli.*": "random numbers of another generator",
    r"test_training_dropout(_default)?(_mask)?": "random numbers of another generator",
    r"test_scan_sum": "opset 8, in which Scan had an axis of examples",
    r"test_attention_4d_causal_fp16_expanded": "one unit in the last place of float16 is more than the tolerance",
    r"test_dft_inverse(_opset19)?": "the expected numbers have rounding errors of 2e-7 where the tolerance is 1e-7",
}
#: Errors about dtypes that the example's PyTorch adapter lacks.
TORCH_LACKS = r".*(computes in float16, bfloat16, float32|no uint(16|32|64)).*"


#: Modules of the package that take seconds to generate their data.
_POOLS = ("averagepool", "lppool", "maxpool")


@functools.cache
def cases(kind: str = "all") -> dict[str, Any]:
    """The tests by name: ``"pools"``, which are slow to generate, ``"others"``, or ``"all"``."""
    if kind == "all":
        return cases("others") | cases("pools")
    from onnx.backend.test.case import node

    before = len(node._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from casts and divisions in the package's data
        for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."):
            if (module.name.rpartition(".")[2] in _POOLS) == (kind == "pools"):
                importlib.import_module(module.name)
    return {case.name: case for case in node._NodeTestCases[before:]}


def expected_reason(name: str) -> str | None:
    """Why a test does not pass; None if it should."""
    return next((reason for pattern, reason in EXCEPTIONS.items() if re.fullmatch(pattern, name)), None)


def backend_of(name: str) -> Any:
    """A backend by spec, or the example's backend for PyTorch."""
    if name != "torch":
        return bb.load_backend(name)
    if str(_EXAMPLE) not in sys.path:
        sys.path.insert(0, str(_EXAMPLE))
    return importlib.import_module("backburn_torch").TorchBackend()


def failure(case: Any, backend: Any) -> str | None:
    """Run one test and return the error or difference; None if it passes."""
    try:
        model = bb.onnx.load(case.model, backend=backend)
        for inputs, outputs in case.data_sets:
            found = model(*map(_given, inputs))
            found = found if isinstance(found, tuple) else (found,)
            for ours, theirs in zip(found, map(_given, outputs), strict=True):
                if words := _difference(ours, theirs, case.rtol, case.atol):
                    return words
    except bb.BackburnError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _given(value: Any) -> Any:
    """A value of a test as an array."""
    import onnx

    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _difference(ours: Any, theirs: Any, rtol: float, atol: float) -> str | None:
    """The difference, if any, with the tolerances of the package's own runner."""
    if theirs is None or ours is None:
        return None if theirs is ours else f"VALUE: {ours} and not {theirs}"
    if isinstance(theirs, (list, tuple)):
        if len(theirs) != len(ours):
            return f"SHAPE: a sequence of {len(ours)} and not {len(theirs)}"
        found = (_difference(a, b, rtol, atol) for a, b in zip(ours, theirs, strict=True))
        return next((words for words in found if words), None)
    array, wanted = ours.numpy(), np.asarray(theirs)
    if array.shape != wanted.shape:
        return f"SHAPE: {array.shape} and not {wanted.shape}"
    if wanted.dtype.name in ("int4", "uint4", "int2", "uint2"):
        wanted = wanted.astype(array.dtype)
    if array.dtype != wanted.dtype:
        return f"DTYPE: {array.dtype} and not {wanted.dtype}"
    if wanted.dtype.name == "bfloat16":
        rtol, array, wanted = max(rtol, 2.0**-6), array.astype(np.float32), wanted.astype(np.float32)
    close = np.allclose(array, wanted, rtol=rtol, atol=atol, equal_nan=True)
    return None if close else f"VALUE: {array.reshape(-1)[:8]} and not {wanted.reshape(-1)[:8]}"


def surprises(chosen: Mapping[str, Any], backend_name: str) -> tuple[dict[str, str], Counter[str]]:
    """The tests with an unexpected outcome, and the number of tests per reason."""
    backend = backend_of(backend_name)
    wrong: dict[str, str] = {}
    reasons: Counter[str] = Counter()
    for name, case in chosen.items():
        words, reason = failure(case, backend), expected_reason(name)
        if words is not None and reason is None and backend_name == "torch" and re.match(TORCH_LACKS, words):
            reason = "dtypes of the adapter"
        if (words is None) != (reason is None):
            wrong[name] = words or f"passes, and was not expected to: {reason}"
        reasons["passes" if words is None else reason or "surprises"] += 1
    return wrong, reasons


def main() -> int:
    """Run all tests on the backends of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", default=["numpy"])
    failed = False
    for backend in parser.parse_args().backends:
        wrong, reasons = surprises(cases(), backend)
        print(f"{backend}: {reasons['passes']} of {len(cases())} pass")
        for reason, count in reasons.most_common()[1:]:
            print(f"  {count:4} {reason}")
        for name, words in wrong.items():
            print(f"  WRONG {name}: {words:.300}")
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
