"""Handlers of ONNX's operators, one module per family."""

from backburn.onnx import host as host
from backburn.onnx.operators import activations as activations
from backburn.onnx.operators import control as control
from backburn.onnx.operators import convolution as convolution
from backburn.onnx.operators import detection as detection
from backburn.onnx.operators import elementwise as elementwise
from backburn.onnx.operators import normalization as normalization
from backburn.onnx.operators import products as products
from backburn.onnx.operators import quantized as quantized
from backburn.onnx.operators import recurrent as recurrent
from backburn.onnx.operators import reductions as reductions
from backburn.onnx.operators import resize as resize
from backburn.onnx.operators import shapes as shapes
from backburn.onnx.operators import signal as signal
