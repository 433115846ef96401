"""The NumPy backend: the CPU reference, and the one that is always there.

NaN and infinities are values, so no operation warns of them. An ``np.errstate`` around every call would cost more than
most calls, and ``np.seterr`` would change the user's NumPy: instead NumPy's RuntimeWarning is ignored where it points
to the modules of this package. Where a program makes errors of all warnings later, tensors, ``Autodiff``, gradients
and tapes see to it (:func:`backburn.base.quiet.silence`). One that calls the backend itself then, or that shows all
warnings by a filter that is added later and so comes first (``warnings.simplefilter("always")``), says again
``backburn.base.quiet.ignore_warnings("backburn_numpy")``. pytest is told by its option
``filterwarnings = ["ignore::RuntimeWarning:backburn_numpy"]``.
"""

from backburn.base.quiet import ignore_warnings

ignore_warnings("backburn_numpy")

from backburn_numpy.backend import NumpyBackend  # noqa: E402 - the filter comes first
from backburn_numpy.quantize import QuantizedArray  # noqa: E402

__all__ = ["NumpyBackend", "QuantizedArray"]
