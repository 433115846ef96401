"""Exporting models to ONNX: a backend that writes nodes, the operators for operations, and the file."""
