"""Models as graphs of ONNX: a backend that writes nodes, the operators for operations, and the file."""
