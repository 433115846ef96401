"""The conformance suite: the requirements on every backend, as samples and checks."""

from backburn.conformance.checks.check import Check
from backburn.conformance.checks.expected import read_expected
from backburn.conformance.checks.kinds import KINDS
from backburn.conformance.reports.report import Report, Result
from backburn.conformance.runner.run import check_backend, parametrize_with_checks
from backburn.conformance.runner.suite import checks
from backburn.conformance.samples import SAMPLES, Sample, SampleSet

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
