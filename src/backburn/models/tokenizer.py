"""Texts as numbers of tokens: ``tokenizer.json`` by the package tokenizers, chat templates by jinja2 in a sandbox."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from backburn.base.errors import ArgumentError, BackendUnavailableError, FileFormatError

#: The largest file of a folder that is read.
LONGEST = 100_000_000
#: The character that a tokenizer writes for bytes that are no whole character yet.
INCOMPLETE = "\ufffd"
#: Tokens that chat templates have by these names, where the folder names them.
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer in a folder of Hugging Face: ``tokenizer.json``, and ``tokenizer_config.json`` for chats.

    Needs the extra ``text``; :class:`BackendUnavailableError` says so. Raises :class:`FileFormatError` for a folder
    without a ``tokenizer.json``, or with a damaged one.

    >>> import tempfile, tokenizers
    >>> folder = tempfile.mkdtemp()
    >>> words = tokenizers.models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?")
    >>> made = tokenizers.Tokenizer(words)
    >>> made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    >>> made.save(f"{folder}/tokenizer.json")
    >>> tokenizer = Tokenizer(folder)
    >>> tokenizer.encode("hello world"), tokenizer.decode([1, 0])
    ([0, 1], 'world hello')
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(os.fsdecode(folder))
        tokenizers = _package("tokenizers")
        text = _text(path / "tokenizer.json", required=True)
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the package raises no narrower class
            raise FileFormatError(f"{path / 'tokenizer.json'}: is no tokenizer: {error}") from error
        self._path = path / "tokenizer_config.json"
        self._config = _table(self._path)
        self._template = _text(path / "chat_template.jinja") or _template(self._config.get("chat_template"))

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if the folder names one."""
        token = _content(self._config.get("eos_token"))
        found: int | None = None if token is None else self._tokenizer.token_to_id(token)
        return found

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The tokens of a text; with ``special_tokens``, those that the tokenizer puts around it too."""
        if not isinstance(text, str):
            raise ArgumentError(f"Tokenizer.encode: takes a string, not {text!r:.100}")
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=special_tokens).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        text: str = self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=True)
        return text

    def decode_stream(self, tokens: Any) -> Iterator[str]:
        """The text of tokens as they come, in pieces: a character appears once all of its tokens are there.

        >>> import tempfile, tokenizers
        >>> folder = tempfile.mkdtemp()
        >>> words = tokenizers.models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?")
        >>> tokenizers.Tokenizer(words).save(f"{folder}/tokenizer.json")
        >>> list(Tokenizer(folder).decode_stream([0, 1]))
        ['hello', ' world']
        """
        # From a text that is done on, since a token's text depends on its neighbours, not on the whole text.
        context: list[int] = []
        recent: list[int] = []
        for token in tokens:
            recent.append(token)
            text = self._added(context, recent)
            if text and not text.endswith(INCOMPLETE):
                yield text
                context, recent = recent, []
        if text := self._added(context, recent):
            yield text

    def _added(self, context: list[int], recent: list[int]) -> str:
        """The text that tokens add to a context: their own, where bytes without a character spoil that of both."""
        before, text = self.decode(context), self.decode([*context, *recent])
        is_spoilt = INCOMPLETE in text and not text.startswith(before)
        return self.decode(recent) if is_spoilt else text[len(before) :]

    def chat(self, messages: Sequence[Mapping[str, Any]], *, generate: bool = True) -> list[int]:
        """The tokens of messages ``{"role": "user", "content": "..."}``, by the folder's chat template.

        With ``generate``, they end where the assistant's answer begins. The template runs in jinja2's sandbox. Raises
        :class:`ArgumentError` for a folder without one, for other messages, and for those that it refuses.
        """
        if self._template is None:
            raise ArgumentError(f"Tokenizer.chat: {self._path.parent} has no chat template; encode a text of your own")
        given: Any = messages
        if not isinstance(given, Sequence) or not all(isinstance(message, Mapping) for message in given):
            words = '[{"role": "user", "content": "..."}]'
            raise ArgumentError(
                f"Tokenizer.chat: messages are a list of mappings, such as {words}, not {messages!r:.100}"
            )
        jinja2 = _package("jinja2")
        import_module("jinja2.ext")

        class Generation(jinja2.ext.Extension):  # type: ignore[misc, name-defined, unused-ignore]
            """Marks what an assistant says, for training: it is text like the rest."""

            tags: ClassVar[set[str]] = {"generation"}

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = import_module("jinja2.sandbox").ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
        )

        def refuse(message: str) -> None:
            raise jinja2.TemplateError(message)

        environment.globals.update(raise_exception=refuse, strftime_now=lambda text: datetime.now().strftime(text))
        environment.filters["tojson"] = lambda x, **options: json.dumps(x, ensure_ascii=False, **options)
        found = {name: _content(self._config.get(name)) for name in SPECIAL}
        names = {name: token for name, token in found.items() if token is not None}
        try:
            text = environment.from_string(self._template).render(
                messages=[*map(dict, messages)], tools=None, documents=None, add_generation_prompt=generate, **names
            )
        except Exception as error:  # whatever a template does is the template's
            raise ArgumentError(f"Tokenizer.chat: the template of {self._path.parent} raised: {error}") from error
        return self.encode(text, special_tokens=False)


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        words = f"Tokenizer: needs the package {name}: pip install 'backburn[text]'"
        raise BackendUnavailableError(words) from error


def _text(path: Path, required: bool = False) -> str | None:
    """The text of a file; None if it is absent and not required."""
    if not path.is_file():
        if required:
            raise FileFormatError(f"{path}: there is no such file; Tokenizer takes a folder with a tokenizer.json")
        return None
    if path.stat().st_size > LONGEST:
        raise FileFormatError(f"{path}: has {path.stat().st_size} bytes; at most {LONGEST} are read")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not UTF-8: {error}") from error


def _table(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it is absent."""
    text = _text(path)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: is no JSON object")
    return found


def _template(found: Any) -> str | None:
    """A chat template; of several with names, the default one."""
    if isinstance(found, list):
        named = {x.get("name"): x.get("template") for x in found if isinstance(x, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _content(token: Any) -> str | None:
    """A token's text, which stands alone or in an object with options."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None
