"""The conformance suite: what every backend must do, as data and checks."""

from backburn.conformance import (  # noqa: F401 - each enters its samples
    samples_activate,
    samples_alignment,
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
    samples_pool,
    samples_random,
    samples_recurrent,
    samples_reduce,
    samples_resample,
    samples_scan,
    samples_sequence,
    samples_sets,
    samples_shape,
    samples_sort,
)
from backburn.conformance.check import Check
from backburn.conformance.expected import read_expected
from backburn.conformance.kinds import KINDS
from backburn.conformance.report import Report, Result
from backburn.conformance.run import check_backend, parametrize_with_checks
from backburn.conformance.samples import SAMPLES, Sample, SampleSet
from backburn.conformance.suite import checks

__all__ = [
    "check_backend",
    "checks",
    "parametrize_with_checks",
    "read_expected",
    "Check",
    "Report",
    "Result",
    "KINDS",
    "SAMPLES",
    "Sample",
    "SampleSet",
]
