"""The module ``bb.fourier`` under its public name, for ``from backburn.fourier import ...``."""

import sys

from backburn._namespace import fourier as _module
from backburn.tensor.fourier import *  # noqa: F403 - for type checkers

sys.modules[__name__] = _module
