"""The module ``bb.fft`` under its public name, for ``from backburn.fft import ...``."""

import sys

from backburn._namespace import fft as _module
from backburn.tensor.fft import *  # noqa: F403 - for type checkers

sys.modules[__name__] = _module
