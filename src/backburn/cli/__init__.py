"""The command ``backburn``: train, evaluate, look at runs, check a backend, and show what is installed.

An error is one message on standard error and exit status 2; ``--debug`` (or ``BACKBURN_DEBUG``) shows the traceback
instead. Status 130 means that Ctrl-C ended a training run, 143 that SIGTERM did.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from backburn.base.errors import BackburnError
from backburn.cli import conformance, generation, information, launch, runs, training
from backburn.communicators.launching import leave_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    >>> main(["info", "sqrt"])
    sqrt(x: F, /) -> F
    ...
    0
    """
    options = parsed(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader (head, a pager) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (BackburnError, OSError) as error:
        if options.debug or os.environ.get("BACKBURN_DEBUG"):
            raise
        words = "\n".join([_words(error), *getattr(error, "__notes__", [])])
        if not leave_error(words):
            print(f"backburn: {words}", file=sys.stderr)
        return 2


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line; one that is none ends the program with a message and status 2."""
    commands = parser()
    options, rest = commands.parse_known_args(arguments)
    if hasattr(options, "overrides") and not any(word.startswith("-") for word in rest):
        options.overrides += rest  # those after an option, which argparse leaves over
    elif rest:
        commands.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.run is launch.launch:
        options.parsed = parsed
    return options


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    from backburn import __version__

    words = "Train, evaluate, check a backend, and look at what is installed."
    top = argparse.ArgumentParser("backburn", description=words)
    top.add_argument("--version", action="version", version=f"backburn {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for add in (
        training.add_train,
        training.add_evaluate,
        runs.add_runs,
        training.add_predict,
        generation.add_generate,
        conformance.add_conformance,
        launch.add_launch,
        information.add_backends,
        information.add_info,
    ):
        add(commands, common)
    return top


def _words(error: Exception) -> str:
    """An error as one message; the system's errors in the form ``path: what``."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
