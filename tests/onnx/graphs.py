"""Small graphs in the text format of onnx."""

from typing import Any


def model(body: str, *, opset: int = 20, imports: str = "", functions: str = "") -> Any:
    """A model from text such as ``"(float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"``."""
    from onnx import parser

    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{imports}]> g {body} {functions}')
