"""Model weights from files of any library, one module per format, and files for other libraries.

A source is a mapping of names to :class:`~backburn.io.weights.stored.Stored`: a shape, the name of a dtype, and a
function that reads the values. Opening a file checks its description of itself against its size; values are read one
tensor at a time, from mapped files.
"""

from backburn.io.weights.load import load_weights
from backburn.io.weights.report import WeightsReport
from backburn.io.weights.save import save_weights

__all__ = ["WeightsReport", "load_weights", "save_weights"]
