"""The command ``backburn``, also as ``python -m backburn``."""

import contextlib
import io
import os
import sys


def open_standard_streams() -> None:
    """Open what is closed of input, output and error, to nowhere: else the next file that is opened takes its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the least number that is free, this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def main() -> int:
    """Run the command line, and handle Ctrl-C from the first import on."""
    open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # the encoding may lack letters in a folder's name
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from backburn.cli import main as command

        return written(command())
    except SystemExit as end:  # of the parser, after a help or an error
        if not (end.code is None or isinstance(end.code, int)):
            raise
        return written(end.code or 0)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("interrupted", file=sys.stderr)
        return written(130)


def written(status: int) -> int:
    """The status, or 2 if what was printed cannot be written; the interpreter would say so of itself at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # where what waits to be printed goes
            if status == 0 and not isinstance(error, BrokenPipeError):  # (head, a pager) has seen enough
                status = 2
                with contextlib.suppress(OSError):
                    print(f"backburn: {error.strerror}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
