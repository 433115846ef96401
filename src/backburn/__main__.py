"""The command ``backburn``, also as ``python -m backburn``."""

import contextlib
import io
import os
import sys


def open_standard_streams() -> None:
    """Open closed standard streams on the null device: else the next file opened would take their descriptor."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free descriptor, this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until exit


def main() -> int:
    """Run the command line, and handle Ctrl-C from the first import on."""
    open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # the encoding may lack characters of a path
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from backburn.cli import main as command

        return written(command())
    except SystemExit as end:  # from the parser, after help or an error
        if not (end.code is None or isinstance(end.code, int)):
            raise
        return written(end.code or 0)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("interrupted", file=sys.stderr)
        return written(130)


def written(status: int) -> int:
    """``status``, or 2 if the output cannot be flushed, which the interpreter would report itself at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # discards the buffered output
            if status == 0 and not isinstance(error, BrokenPipeError):  # head or a pager closes the pipe
                status = 2
                with contextlib.suppress(OSError):
                    print(f"backburn: {error.strerror}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
