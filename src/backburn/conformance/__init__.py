"""The conformance suite: what every backend must do, as data and checks."""

from backburn.conformance import (  # noqa: F401 - each enters its samples
    samples_activate,
    samples_arithmetic,
    samples_choice,
    samples_conv,
    samples_create,
    samples_decompose,
    samples_fft,
    samples_functions,
    samples_index,
    samples_kinds,
    samples_linalg,
    samples_logic,
    samples_loss,
    samples_normalize,
    samples_optimize,
    samples_random,
    samples_reduce,
    samples_scan,
    samples_sets,
    samples_shape,
    samples_sort,
)
from backburn.conformance.samples import SAMPLES, Sample, SampleSet

__all__ = ["SAMPLES", "Sample", "SampleSet"]
