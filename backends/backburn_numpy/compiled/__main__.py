"""``python -m backburn_numpy.compiled``: compile the kernels for this machine, if the installation did not."""

from __future__ import annotations

import sys

from backburn_numpy.compiled.build import NoCompilerError, build


def main() -> int:
    """Compile, and print the libraries made or what is missing."""
    try:
        made = build()
    except NoCompilerError as error:
        print(f"The kernels are not compiled: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
