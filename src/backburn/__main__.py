"""The command ``backburn``, also as ``python -m backburn``."""

import sys


def main() -> int:
    """Run the command line, and take Ctrl-C from the first import on."""
    try:
        from backburn.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
