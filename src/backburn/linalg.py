"""The module ``bb.linalg`` under its public name, for ``from backburn.linalg import ...``."""

import sys

from backburn._namespace import linalg as _module
from backburn.tensor.linalg.namespace import *  # noqa: F403 - for type checkers

sys.modules[__name__] = _module
