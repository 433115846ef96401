"""How much a ``tokenizer.json`` may lengthen a text: each of its parts may double the result of the one before.

Forty replacements of a letter by two, in a file of 3 kB, make a tebibyte of one letter. Parts that only normalize, such
as Unicode's forms, change nothing more when repeated, and are not counted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from backburn.base.errors import FileFormatError

#: The most bytes or tokens of one byte, the most parts, the most tokens added around a text, and the longest word that
#: is split into pieces, in time cubic in its length. Published tokenizers have tens, and words of a hundred.
MOST_GROWTH, MOST_PARTS, MOST_ADDED, MOST_WORD = 1000, 1000, 10_000, 1000
#: The lists of parts in a part.
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")


def check_growth(where: str, tokenizer: Any) -> None:
    """Raise :class:`FileFormatError` for a tokenizer of the package tokenizers that lengthens texts beyond bounds."""
    before = [*_parts(tokenizer.normalizer), *_parts(tokenizer.pre_tokenizer), *_parts(tokenizer.post_processor)]
    for parts in (before, [*_parts(tokenizer.decoder)]):
        if len(parts) > MOST_PARTS or prod(map(_growth, parts)) > MOST_GROWTH:
            raise FileFormatError(
                f"{where}: its {len(parts)} parts make more than {MOST_GROWTH} bytes or tokens of one, which no "
                f"tokenizer needs"
            )
    if sum(map(_added, before)) > MOST_ADDED:
        raise FileFormatError(f"{where}: puts more than {MOST_ADDED} tokens around a text")
    if getattr(tokenizer.model, "max_input_chars_per_word", 0) > MOST_WORD:
        raise FileFormatError(f"{where}: cuts words of more than {MOST_WORD} letters (max_input_chars_per_word)")


def _parts(component: Any) -> Iterator[Mapping[str, Any]]:
    """The parts of a normalizer or another component, which may be sequences of sequences."""
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    while waiting:
        part = waiting.pop()
        yield part
        for name in _LISTS:
            waiting += part.get(name) or ()


def _growth(part: Mapping[str, Any]) -> int:
    """The most bytes, or tokens, that a part makes from one."""
    kind = part["type"]
    if kind == "Replace":
        old, new = part["pattern"].get("String", "").encode(), part["content"].encode()
        return max(1, -(-len(new) // len(old))) if old else 1 + len(new)  # between any two letters, or by a pattern
    if kind == "Precompiled":
        table = base64.b64decode(part["precompiled_charsmap"])
        return max(1, *map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")))
    if kind == "TemplateProcessing":
        return max(1, *(sum("Sequence" in piece for piece in part[name]) for name in ("single", "pair")))
    return 2 if kind in ("ByteLevel", "BPEDecoder") else 1


def _added(part: Mapping[str, Any]) -> int:
    """The number of tokens that a part adds around a text."""
    if part["type"] != "TemplateProcessing":
        return 0
    counts = {name: len(token["ids"]) for name, token in part["special_tokens"].items()}
    return max(
        sum(counts.get(piece["SpecialToken"]["id"], 0) for piece in part[name] if "SpecialToken" in piece)
        for name in ("single", "pair")
    )
