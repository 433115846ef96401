"""Continuing texts with a decoder, token by token."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from backburn.base.errors import ArgumentError, OutOfRangeError
from backburn.models.cache import Cache
from backburn.models.sampling import Sampling, uniform
from backburn.nn.module import Module
from backburn.tensor import random
from backburn.tensor.core.defaults import no_grad
from backburn.tensor.core.host import asarray
from backburn.tensor.core.options import integer
from backburn.transforms.capturing import capture as recorded

#: The steps of a prompt that are read at a time, and the most new steps that the initial cache has room for.
PROMPT_CHUNK, ROOM = 512, 256


def generate(
    model: Module,
    prompts: Any,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop_tokens: int | Iterable[int] | None = None,
    seed: int | None = None,
) -> Any:
    """The tokens with which a decoder such as :class:`Llama` continues a prompt, or each of several.

    ``prompts`` is a sequence of token numbers, or several such sequences of any lengths; the result has as many lists.
    With the default ``temperature`` of 0, each token is the likeliest one; for the options of a random choice see
    :class:`Sampling`. A text ends with the first of ``stop_tokens`` (by default the configuration's ``eos_token_id``),
    which is not part of the result, or after ``max_new_tokens``.

    ``seed`` gives the same tokens on every backend with equal logits; they depend on a text's index in the batch, not
    on the other texts. None draws a number from the default generator (``bb.random.seed``).

    A backend that records (``capture(numpy)``, ``cupy``) replays the steps. Call the model's ``eval()`` first, to
    disable dropout. Raises :class:`ArgumentError` for options out of range, empty prompts and models that are not
    decoders, and :class:`OutOfRangeError` for tokens that the vocabulary does not have and for more steps than there
    are positions.

        >>> import backburn as bb
        >>> bb.random.seed(0)
        >>> config = bb.models.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        ...                                num_attention_heads=2)
        >>> model = bb.models.Llama(config).eval()
        >>> one = generate(model, [3, 1, 4], max_new_tokens=5)
        >>> several = generate(model, [[3, 1, 4], [1, 5]], max_new_tokens=5)
        >>> len(one), several[0] == one
        (5, True)
    """
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
               "repetition_penalty": repetition_penalty, "stop_tokens": stop_tokens, "seed": seed}  # fmt: skip
    rows, is_one = _rows(prompts)
    found: list[list[int]] = [[] for _ in rows]
    for tokens in stream(model, rows, max_new_tokens, **options):
        for text, token in zip(found, tokens, strict=True):
            if token is not None:
                text.append(token)
    return found[0] if is_one else found


def stream(
    model: Module,
    prompts: Any,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop_tokens: int | Iterable[int] | None = None,
    seed: int | None = None,
) -> Iterator[Any]:
    """The new tokens of :func:`generate`, one at a time: a number, or None for a text that has ended.

    For several prompts, each item is a list of these. Arguments are checked at the call, not at the first item.

        >>> import backburn as bb
        >>> config = bb.models.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
        >>> for token in stream(bb.models.GPT2(config).eval(), [3, 1, 4], max_new_tokens=2):
        ...     assert 0 <= token < 32
    """
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
    )
    _check_takes_cache(model)
    rows, is_one = _rows(prompts)
    count = integer("generate", "max_new_tokens", max_new_tokens, least=1)
    config: Any = getattr(model, "config", None)
    _check(rows, count, getattr(config, "vocab_size", None), getattr(config, "n_positions", None))
    stops = {*_numbers(getattr(config, "eos_token_id", None) if stop_tokens is None else stop_tokens)}
    if seed is None:
        seed = int(random.integers((), 0, 1 << 31, backend=_backend(model)).item()) if temperature else 0
    elif integer("generate", "seed", seed, least=0) >= 1 << 64:
        raise ArgumentError(f"generate: seed is below 2**64, not {seed}")
    found = _stream(model, rows, count, sampling, stops, seed)
    return (tokens[0] for tokens in found) if is_one else found


def _stream(
    model: Module, rows: list[list[int]], count: int, sampling: Sampling, stops: set[int], seed: int
) -> Iterator[list[int | None]]:
    """The new tokens of all texts, step by step, until all have ended."""
    step = _reader(model, rows, count)
    texts, active, logits = [[*row] for row in rows], [True] * len(rows), next(step)
    for number in range(count):
        chosen: list[int | None] = []
        for i, text in enumerate(texts):
            token = None
            if active[i]:
                draw = uniform(seed, i, number) if sampling.temperature else 0.0
                token = sampling.choose(logits[i], draw, text)
                active[i] = token not in stops
                text.append(token)
            chosen.append(token if active[i] else None)
        if not any(active):
            return
        yield chosen
        if number + 1 < count:
            logits = step.send([text[-1] for text in texts])


def _reader(model: Any, rows: list[list[int]], count: int) -> Any:
    """A generator of the logits (texts, vocab_size) after the prompts, and after each list of tokens sent to it."""
    backend, longest = _backend(model), max(map(len, rows))
    padded = np.array([[0] * (longest - len(row)) + row for row in rows], np.int64)
    is_token = np.array([[0] * (longest - len(row)) + [1] * len(row) for row in rows], np.int64)
    cache, logits = Cache(capacity=longest + min(count, ROOM)), None
    for start in range(0, longest, PROMPT_CHUNK):
        part = slice(start, start + PROMPT_CHUNK)
        mask = None if is_token.all() else asarray(is_token[:, part], backend=backend)
        with no_grad():
            logits = model(asarray(padded[:, part], backend=backend), mask, cache=cache, logits_to_keep=1)
    assert logits is not None
    decode = _decoder(model, cache, longest, count)
    while True:
        tokens = yield logits[:, -1].numpy()
        with no_grad():
            logits = decode(asarray(np.array(tokens, np.int64)[:, None], backend=backend))


def _decoder(model: Any, cache: Cache, steps: int, count: int) -> Callable[[Any], Any]:
    """A function from one more token of each text to its logits; it records and replays steps if the backend can."""
    if not _backend(model).capabilities.capture:
        return lambda tokens: model(tokens, cache=cache, logits_to_keep=1)
    run = recorded(lambda cache, tokens: (cache, model(tokens, cache=cache, logits_to_keep=1)), on_fallback="allow")
    state, end = cache.fixed(), steps

    def decode(tokens: Any) -> Any:
        nonlocal state, end
        end += 1
        if end > state.capacity:
            state.reserve(min(steps + count, 2 * state.capacity))
        state, logits = run(state, tokens)
        return logits

    return decode


def _check_takes_cache(model: Any) -> None:
    """Raises :class:`ArgumentError` for a model that cannot be called with only the new tokens."""
    options = inspect.signature(model.forward).parameters if isinstance(model, Module) else {}
    if "cache" not in options and all(option.kind is not option.VAR_KEYWORD for option in options.values()):
        raise ArgumentError(
            f"generate: a {type(model).__name__} takes no cache, so it cannot continue texts: a decoder is called as "
            "Llama is, with tokens, their mask, cache and logits_to_keep"
        )


def _backend(model: Any) -> Any:
    """The backend of a model's parameters."""
    return next(iter(model.parameters())).backend


def _rows(prompts: Any) -> tuple[list[list[int]], bool]:
    """The prompts as lists, and whether a single one was given."""
    rows = prompts.tolist() if hasattr(prompts, "tolist") else [*prompts]
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    is_one = bool(rows) and not isinstance(rows[0], (list, tuple))
    if is_one:
        rows = [rows]
    elif wrong := [row for row in rows if not isinstance(row, (list, tuple))]:
        raise ArgumentError(f"generate: prompts are one list of tokens, or several: {wrong[0]!r:.100} is among lists")
    if not rows or not all(rows):
        raise ArgumentError("generate: a prompt has at least one token: begin with the model's bos_token_id")
    return [[_number(token) for token in row] for row in rows], is_one


def _number(token: Any) -> int:
    if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
        raise ArgumentError(f"generate: prompts are token numbers, such as a tokenizer gives, not {token!r:.100}")
    return int(token)


def _numbers(tokens: Any) -> list[int]:
    if tokens is None:
        return []
    return [_number(tokens)] if isinstance(tokens, (int, np.integer)) else [*map(_number, tokens)]


def _check(rows: list[list[int]], count: int, vocabulary: int | None, positions: int | None) -> None:
    """Raises :class:`OutOfRangeError` for tokens and steps that the model does not have."""
    for row in rows:
        for token in row:
            if token < 0 or (vocabulary is not None and token >= vocabulary):
                raise OutOfRangeError(f"generate: the prompt has token {token}; the vocabulary has {vocabulary}")
    longest = max(map(len, rows))
    if positions is not None and longest + count - 1 > positions:
        words = f"a prompt of {longest} tokens and max_new_tokens={count} are more than its {positions} positions"
        raise OutOfRangeError(f"generate: {words}; at most {max(0, positions - longest + 1)} new tokens fit")
