"""The command ``backburn``, also as ``python -m backburn``."""

import io
import sys


def main() -> int:
    """Run the command line, and take Ctrl-C from the first import on."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # the encoding may lack letters in a folder's name
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from backburn.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
