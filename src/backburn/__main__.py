"""The command ``backburn``, also as ``python -m backburn``."""

import io
import os
import sys


def open_standard_streams() -> None:
    """Open what is closed of input, output and error, to nowhere: else the next file that is opened takes its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the least number that is free, this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def main() -> int:
    """Run the command line, and take Ctrl-C from the first import on."""
    open_standard_streams()
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
