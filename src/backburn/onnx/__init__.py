"""ONNX models: loaded as modules that compute and train on any backend, and exported.

Needs the package ``onnx``: ``pip install 'backburn[onnx]'``.
"""

from backburn.onnx.exporter.write import export
from backburn.onnx.limits import Limits
from backburn.onnx.load import load
from backburn.onnx.model import InputSpec, OnnxModel, OnnxPart
from backburn.onnx.report import Entry, OnnxReport

__all__ = ["Entry", "InputSpec", "Limits", "OnnxModel", "OnnxPart", "OnnxReport", "export", "load"]
