"""NumPy: comparisons, logical and bitwise operations."""

from __future__ import annotations

import numpy as np

from backburn_numpy.ufuncs import binary, comparison, unary

equal = comparison(np.equal)
not_equal = comparison(np.not_equal)
less = comparison(np.less)
less_equal = comparison(np.less_equal)
greater = comparison(np.greater)
greater_equal = comparison(np.greater_equal)

isnan = unary(np.isnan)
isinf = unary(np.isinf)
isfinite = unary(np.isfinite)
signbit = unary(np.signbit)
copysign = binary(np.copysign)
nextafter = binary(np.nextafter)

logical_and = binary(np.logical_and)
logical_or = binary(np.logical_or)
logical_not = unary(np.logical_not)
logical_xor = binary(np.logical_xor)

bitwise_and = binary(np.bitwise_and)
bitwise_or = binary(np.bitwise_or)
bitwise_xor = binary(np.bitwise_xor)
bitwise_invert = unary(np.invert)
bitwise_left_shift = binary(np.left_shift)
bitwise_right_shift = binary(np.right_shift)
