"""The command ``backburn``: train, evaluate, look at runs, check a backend, and show what is installed.

An error is one message on standard error and exit status 2; ``--debug`` (or ``BACKBURN_DEBUG``) shows the traceback
instead. Status 130 means that Ctrl-C ended a training run, 143 that SIGTERM did.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from backburn.base.errors import BackburnError, hint_for
from backburn.base.foreign import printable, printable_lines
from backburn.cli import conformance, generation, information, launch, onnx_models, runs, training
from backburn.communicators.launching import leave_error

#: The function that adds each command to the parser, in the order of the help.
COMMANDS: dict[str, Callable[[Any, argparse.ArgumentParser], None]] = {
    "train": training.add_train,
    "evaluate": training.add_evaluate,
    "runs": runs.add_runs,
    "predict": training.add_predict,
    "generate": generation.add_generate,
    "run": onnx_models.add_run,
    "conformance": conformance.add_conformance,
    "launch": launch.add_launch,
    "backends": information.add_backends,
    "info": information.add_info,
}

#: How each shell that shtab supports completes file names.
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
#: Arguments of these names are files or folders.
FILE_NAMES = ("CONFIG", "DIR", "FILE", "FOLDER", "INPUTS", "MODEL", "PATH")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    >>> main(["info", "sqrt"])
    sqrt(x: F, /) -> F
    ...
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        parser().print_help()
        return 0
    options = parsed(given)
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
        _say("\n".join([_words(error), *getattr(error, "__notes__", [])]))
        return 2
    except MemoryError as error:
        if options.debug or os.environ.get("BACKBURN_DEBUG"):
            raise
        _say(f"there is not enough memory. {error}".rstrip())
        return 2


def parsed(given: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; an invalid one ends the program with a message and status 2."""
    commands = parser()
    if not given[0].startswith("-") and given[0] not in COMMANDS:
        commands.error(f"there is no command {given[0]!r}. {hint_for(given[0], COMMANDS)}")
    options, rest = commands.parse_known_args(given)
    if hasattr(options, "overrides") and not any(word.startswith("-") for word in rest):
        options.overrides = [*options.overrides, *rest]  # those after an option, which argparse does not assign
    elif rest:
        commands.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.run is launch.launch:
        options.parsed = parsed
    return options


def _say(words: str) -> None:
    """Print an error, or leave it for ``backburn launch``, which prints it once for all ranks."""
    words = printable_lines(words)
    if not leave_error(words):
        with contextlib.suppress(OSError):  # the status says it, too
            print(f"backburn: {words}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands, from which ``shtab`` writes completions."""
    from backburn import __version__

    words = "Train, evaluate, check a backend, and look at what is installed."
    top = argparse.ArgumentParser("backburn", description=words)
    top.add_argument("-V", "--version", action="version", version=f"backburn {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for add in COMMANDS.values():
        add(commands, common)
    for command in commands.choices.values():
        for action in command._actions:
            if action.metavar in FILE_NAMES:
                vars(action)["complete"] = FILES
    return top


def _words(error: Exception) -> str:
    """An error as one message; the system's errors in the form ``path: what``."""
    if isinstance(error, OSError) and error.strerror:
        return f"{printable(error.filename)}: {error.strerror}" if error.filename else error.strerror
    return str(error)
