"""The NumPy backend: the CPU reference, always available.

NaN and infinities are values, so no operation warns about them. An ``np.errstate`` around every call would cost more
than most calls, and ``np.seterr`` would change the user's NumPy; instead NumPy's RuntimeWarning is ignored when
attributed to this package's modules. If a program later turns all warnings into errors, or makes NumPy raise by
``np.seterr``, an operation that raised is repeated with that suspended (:mod:`backburn_numpy.runtime.quiet`). A
program that later shows all warnings (``warnings.simplefilter("always")``) calls
``backburn.backend.adapters.ignore_warnings("backburn_numpy")`` again. For pytest, set ``filterwarnings =
["ignore::RuntimeWarning:backburn_numpy"]``.
"""

from backburn.backend.adapters import ignore_warnings

ignore_warnings("backburn_numpy")

from backburn_numpy.backend import NumpyBackend  # noqa: E402 - after the filter
from backburn_numpy.ops.quantization import QuantizedArray  # noqa: E402

__all__ = ["NumpyBackend", "QuantizedArray"]

for _public in (NumpyBackend, QuantizedArray):
    _public.__module__ = __name__  # pickles name the public path
