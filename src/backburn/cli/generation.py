"""``backburn generate``: continue a text with a model in a folder, on the terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.base.foreign import inert


def add_generate(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn generate``."""
    command = commands.add_parser(
        "generate",
        parents=[common],
        help="continue a text with a language model in a folder",
        description="Continue a text with a language model in a folder of Hugging Face's layout.",
    )
    command.add_argument("folder", metavar="FOLDER", type=Path, help="config.json, weights and tokenizer.json")
    command.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    command.add_argument(
        "--chat", action="store_true", help="send the prompt as a chat message, with the folder's chat template"
    )
    command.add_argument("--backend", metavar="SPEC", default="capture(numpy)", help="default: capture(numpy)")
    command.add_argument("--dtype", metavar="D", help="the dtype of the weights, such as float32")
    command.add_argument("--max-new-tokens", metavar="N", type=int, default=200, help="default: 200")
    command.add_argument("--temperature", metavar="T", type=float, default=0.0, help="0, the default: no randomness")
    command.add_argument("--top-k", metavar="K", type=int, default=0, help="only the K likeliest tokens")
    command.add_argument("--top-p", metavar="P", type=float, default=1.0, help="only the likeliest that sum to P")
    command.add_argument(
        "--min-p", metavar="P", type=float, default=0.0, help="only those at least P times as likely as the first"
    )
    command.add_argument("--repetition-penalty", metavar="R", type=float, default=1.0, help="1, the default: none")
    command.add_argument("--seed", metavar="N", type=int, help="the same seed gives the same text")
    command.set_defaults(run=generate)


def generate(options: argparse.Namespace) -> int:
    """Print the text as it is generated."""
    from backburn.models import Tokenizer, from_pretrained, stream

    tokenizer = Tokenizer(options.folder)
    message = [{"role": "user", "content": options.prompt}]
    prompt = tokenizer.chat(message) if options.chat else tokenizer.encode(options.prompt)
    if not prompt:
        raise ArgumentError("generate: the prompt is empty")
    model: Any = from_pretrained(options.folder, backend=options.backend, dtype=options.dtype)
    stops = getattr(model.config, "eos_token_id", None)
    names = "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"
    tokens = stream(
        model, prompt, options.max_new_tokens,
        stop_tokens=tokenizer.eos_token_id if stops is None else stops, **{n: getattr(options, n) for n in names},
    )  # fmt: skip
    is_terminal = sys.stdout.isatty()
    for piece in tokenizer.decode_stream(token for token in tokens if token is not None):
        print(inert(piece) if is_terminal else piece, end="", flush=True)
    print()
    return 0
