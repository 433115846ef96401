"""Texts as token numbers: ``tokenizer.json`` with the package tokenizers, chat templates with jinja2 in a sandbox."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from backburn.base.call_site import stack_level
from backburn.base.errors import ArgumentError, BackburnError, BackendUnavailableError, FileFormatError
from backburn.base.foreign import printable, quoted
from backburn.base.foreign_files import inside, parsed
from backburn.base.metadata import MetadataWarning, warn_of
from backburn.base.regular import read_regular
from backburn.models.templates import rendered
from backburn.models.tokenizer_bounds import check_growth

#: The largest file of a folder that is read.
LONGEST = 100_000_000
#: The character that a tokenizer writes for bytes of an incomplete character.
INCOMPLETE = "\ufffd"
#: The most tokens that are decoded together to complete a character.
_LONGEST_CHARACTER = 64
#: Tokens that chat templates get by these names, if the folder defines them.
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
#: Keys of ``tokenizer_config.json`` that are read, or compared with ``tokenizer.json``.
READ = frozenset(SPECIAL) | {
    "add_prefix_space", "added_tokens_decoder", "additional_special_tokens", "chat_template", "do_lower_case",
    "extra_special_tokens", "model_specific_special_tokens", "split_special_tokens", "strip_accents",
    "tokenize_chinese_chars",
}  # fmt: skip
#: Keys without an effect here: for padding and truncation, which are not done, for tokenizers without a
#: ``tokenizer.json``, and for ways to load. transformers, too, takes the tokens that begin and end a text from
#: ``tokenizer.json``, and does not clean up spaces of decoders' tokenizers.
IDLE = frozenset(
    {"_commit_hash", "_from_auto", "add_bos_token", "add_eos_token", "added_tokens_file", "auto_map", "backend",
     "byte_fallback", "chat_control_tokens", "clean_up_tokenization_spaces",
     "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "default_chat_template",
     "device_map", "do_basic_tokenize", "errors", "files_loaded", "fix_mistral_regex", "full_tokenizer_file",
     "gguf_file", "init_inputs", "is_local", "legacy", "legacy_behaviour", "local_files_only", "mask_time_prob",
     "max_len", "max_length", "merges_file", "model_input_names", "model_max_length", "name_or_path", "never_split",
     "pad_to_multiple_of", "pad_token_type_id", "padding", "padding_side", "processor_class", "response_schema",
     "response_template", "return_tensors", "return_token_type_ids", "sp_model_kwargs", "spaces_between_special_tokens",
     "special_tokens_map_file", "stride", "tokenizer_class", "tokenizer_file", "tokenizer_object", "trim_offsets",
     "truncation", "truncation_side", "truncation_strategy", "trust_remote_code", "use_default_system_prompt",
     "use_fast", "verbose", "vocab_file", "wordpieces_prefix"}
)  # fmt: skip
KEYS = READ | IDLE
#: The keys that set options of a normalizer, and their names in ``tokenizer.json``.
_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


class Tokenizer:
    """The tokenizer in a folder of Hugging Face: ``tokenizer.json``, and ``tokenizer_config.json`` for chats.

    Raises :class:`BackendUnavailableError` without the extra ``text``, and :class:`FileFormatError` for a folder
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
        text = _text(path, "tokenizer.json", required=True)
        where = printable(path / "tokenizer.json", 1000)
        self._failure = FileFormatError, f"{where}: fails on this input"
        is_none = FileFormatError, f"{where}: is not a tokenizer"
        self._tokenizer: Any = _called(is_none, tokenizers.Tokenizer.from_str, text)
        _called(is_none, check_growth, where, self._tokenizer)
        self._tokenizer.no_padding()  # which a file may request, to any length; transformers ignores it too
        self._tokenizer.no_truncation()
        self._path = path / "tokenizer_config.json"
        self._config = _table(path, self._path.name)
        self._template = _text(path, "chat_template.jinja") or _template(self._config.get("chat_template"))
        if self._config.get("split_special_tokens") is True:
            self._tokenizer.encode_special_tokens = True
        self._compare(text)

    def _compare(self, text: str) -> None:
        """Warn where ``tokenizer_config.json`` contradicts ``tokenizer.json``, and of unlisted keys."""
        where = str(self._path)
        unknown = {key for key in self._config.keys() - KEYS if not key.endswith("_token")}  # tokens by other names
        warn_of(where, unknown, stacklevel=stack_level() + 1)
        wrong = [f"{key} is {self._config[key]!r:.50}" for key in _differing(self._config, text)]
        tokens = [t for t in _tokens(self._config) if _called(self._failure, self._tokenizer.token_to_id, t) is None]
        if tokens:
            wrong.append(f"the tokens {', '.join(quoted(t, 60) for t in tokens[:10])} are named")
        if wrong:
            words = f"{where}: {'; '.join(wrong)}, unlike in tokenizer.json, which is used"
            warnings.warn(words, MetadataWarning, stacklevel=stack_level())

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if the folder names one."""
        token = _content(self._config.get("eos_token"))
        found: int | None = None
        if token is not None:
            found = _called(self._failure, self._tokenizer.token_to_id, token)
        return found

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The tokens of a text; with ``special_tokens``, also those that the tokenizer adds around it.

        A text is neither truncated nor padded, whatever the folder says. Raises :class:`ArgumentError` for anything but
        Unicode text, and :class:`FileFormatError` where the folder's tokenizer fails.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"Tokenizer.encode: takes a string, not {text!r:.100}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            words = f"the text has half of a surrogate pair, at character {error.start}"
            raise ArgumentError(f"Tokenizer.encode: {words}") from None
        found: list[int] = _called(self._failure, self._tokenizer.encode, text, add_special_tokens=special_tokens).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones.

        Raises :class:`ArgumentError` for anything but token numbers, and :class:`FileFormatError` where the folder's
        tokenizer fails.
        """
        numbers = [int(token) for token in tokens]
        if wrong := [number for number in numbers if not 0 <= number < 1 << 32]:
            raise ArgumentError(f"Tokenizer.decode: takes token numbers, from 0 on, not {wrong[0]!r:.100}")
        text: str = _called(self._failure, self._tokenizer.decode, numbers, skip_special_tokens=True)
        return text

    def decode_stream(self, tokens: Any) -> Iterator[str]:
        """The text of tokens as they come, in pieces: a character appears once all of its tokens have come.

        >>> import tempfile, tokenizers
        >>> folder = tempfile.mkdtemp()
        >>> words = tokenizers.models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?")
        >>> tokenizers.Tokenizer(words).save(f"{folder}/tokenizer.json")
        >>> list(Tokenizer(folder).decode_stream([0, 1]))
        ['hello', ' world']
        """
        # Tokens are decoded together with those of the last piece: their text depends on neighbours, not on all tokens.
        context: list[int] = []
        recent: list[int] = []
        for token in tokens:
            recent.append(token)
            text = self._added(context, recent)
            is_long = len(recent) > _LONGEST_CHARACTER  # no character has so many tokens: none may ever come
            if text and (is_long or not text.endswith(INCOMPLETE)):
                yield text
                context, recent = recent, []
            elif is_long:
                context, recent = recent, []
        if text := self._added(context, recent):
            yield text

    def _added(self, context: list[int], recent: list[int]) -> str:
        """The text that tokens add to a context; their own if incomplete characters spoil that of both."""
        before, text = self.decode(context), self.decode([*context, *recent])
        is_spoilt = INCOMPLETE in text and not text.startswith(before)
        return self.decode(recent) if is_spoilt else text[len(before) :]

    def chat(self, messages: Sequence[Mapping[str, Any]], *, generate: bool = True) -> list[int]:
        """The tokens of messages ``{"role": "user", "content": "..."}``, rendered by the folder's chat template.

        With ``generate``, they end where the assistant's answer begins. The template runs in jinja2's sandbox, limited
        to 300,000 steps and a million characters, or more in long chats. Raises :class:`ArgumentError` for a folder
        without a template, for other messages, for those that it refuses, and for a template that exceeds the limits.
        """
        if not self._template:
            raise ArgumentError(f"Tokenizer.chat: {self._path.parent} has no chat template; encode a text of your own")
        given: Any = messages
        if not isinstance(given, Sequence) or not all(isinstance(message, Mapping) for message in given):
            words = '[{"role": "user", "content": "..."}]'
            raise ArgumentError(
                f"Tokenizer.chat: messages are a list of mappings, such as {words}, not {messages!r:.100}"
            )
        _package("jinja2")
        found = {name: _content(self._config.get(name)) for name in SPECIAL}
        names = {name: token for name, token in found.items() if token is not None}
        try:
            text = rendered(self._template, messages, generate, names)
        except Exception as error:  # any error is the template's
            words = f"the template of {self._path.parent} raised: {printable(error, 1000)}"
            raise ArgumentError(f"Tokenizer.chat: {words}") from error
        return self.encode(text, special_tokens=False)


def _differing(config: Mapping[str, Any], text: str) -> list[str]:
    """The keys of a configuration that contradict the text of a ``tokenizer.json``."""
    given = {key for key in (*_NORMALIZER, "add_prefix_space") if isinstance(config.get(key), bool)}
    if not given:
        return []
    try:
        table = json.loads(text)
    except ValueError:
        return []
    found = []
    for part in _parts(table.get("normalizer"), "BertNormalizer"):
        found += [key for key in sorted(given & _NORMALIZER.keys()) if part.get(_NORMALIZER[key]) != config[key]]
    for part in _parts(table.get("pre_tokenizer"), "ByteLevel"):
        differs = "add_prefix_space" in given and part.get("add_prefix_space") != config["add_prefix_space"]
        found += ["add_prefix_space"] * differs
    return found


def _parts(table: Any, kind: str) -> list[dict[str, Any]]:
    """The parts of type ``kind`` in a normalizer or a pre-tokenizer, which may be a sequence of parts."""
    if not isinstance(table, dict):
        return []
    inner = [x for key in ("normalizers", "pretokenizers") for x in table.get(key) or () if isinstance(x, dict)]
    return [x for x in (table, *inner) if x.get("type") == kind]


def _tokens(config: Mapping[str, Any]) -> list[str]:
    """The special tokens that a configuration names."""
    found = [config.get(name) for name in SPECIAL]
    for key in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
        several = config.get(key)
        found += several.values() if isinstance(several, dict) else several if isinstance(several, list) else ()
    return list(dict.fromkeys(text for text in map(_content, found) if text is not None))


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        words = f"Tokenizer: needs the package {name}: pip install 'backburn[text]'"
        raise BackendUnavailableError(words) from error


def _called(
    failure: tuple[type[BackburnError], str], function: Callable[..., Any], *values: Any, **options: Any
) -> Any:
    """The result of a function of the package tokenizers. Raises the error of ``failure`` for any that it raises.

    Its panics are not an ``Exception``, and a defect of a file may show only when a text is read.
    """
    try:
        return function(*values, **options)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, BackburnError):
        raise
    except BaseException as error:
        kind, words = failure
        raise kind(f"{words}: {printable(error, 500)}") from error


def _text(folder: Path, name: str, required: bool = False) -> str:
    """The text of a file in a folder; empty if it is absent and not required."""
    path = folder / name
    if not path.is_file():
        if required:
            raise FileFormatError(
                f"{path}: there is no such file; Tokenizer takes a folder with a tokenizer.json: "
                "copy it from the folder of the model that this one was made from"
            )
        return ""
    try:
        return read_regular(inside(path, folder), LONGEST).decode()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not UTF-8: {error}") from error


def _table(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file; empty if it is absent."""
    path = folder / name
    if not path.is_file():
        return {}
    found = parsed(read_regular(inside(path, folder), LONGEST), f"{path}: is")
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: not a JSON object")
    return found


def _template(found: Any) -> str | None:
    """A chat template; of several with names, the default one."""
    if isinstance(found, list):
        found = next((x.get("template") for x in found if isinstance(x, dict) and x.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _content(token: Any) -> str | None:
    """A token's text, given alone or in an object with options."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None
