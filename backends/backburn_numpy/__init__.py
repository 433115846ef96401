"""The NumPy backend: the CPU reference, always available.

NaN and infinities are values, so no operation warns about them. An ``np.errstate`` around every call would cost more
than most calls, and ``np.seterr`` would change the user's NumPy; instead NumPy's RuntimeWarning is ignored when
attributed to this package's modules. If a program later turns all warnings into errors, tensors, ``Autodiff``,
gradients and tapes restore the filter (:func:`backburn.base.quiet.silence`); if it makes NumPy raise by ``np.seterr``,
they repeat the operation with that suspended. A program that then calls the backend directly, or whose later filter
takes precedence (``warnings.simplefilter("always")``), calls ``backburn.base.quiet.ignore_warnings("backburn_numpy")``
again. For pytest, set ``filterwarnings = ["ignore::RuntimeWarning:backburn_numpy"]``.
"""

from backburn.base.quiet import ignore_warnings

ignore_warnings("backburn_numpy")

from backburn_numpy.backend import NumpyBackend  # noqa: E402 - after the filter
from backburn_numpy.quantize import QuantizedArray  # noqa: E402

__all__ = ["NumpyBackend", "QuantizedArray"]
