"""The module ``bb.random`` under its public name, for ``from backburn.random import ...``."""

import sys

from backburn._namespace import random as _module
from backburn.tensor.random import *  # noqa: F403 - for type checkers

sys.modules[__name__] = _module
