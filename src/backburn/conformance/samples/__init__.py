"""Samples: for each operation, a float64 reference and the calls to try; one module per family of operations."""

import importlib
import pkgutil

from backburn.conformance.samples.table import SAMPLES, Array, Sample, SampleSet, case, real, samples

__all__ = ["SAMPLES", "Array", "Sample", "SampleSet", "case", "real", "samples"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
