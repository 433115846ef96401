"""``python -m backburn`` is the command ``backburn``."""

import sys

from backburn.cli import main

if __name__ == "__main__":
    sys.exit(main())
