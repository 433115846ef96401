"""Tokenizers and chat templates in folders, including damaged and hostile ones."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.models.frozen import frozen

import backburn as bb
from backburn.base.metadata import MetadataWarning
from backburn.cli import main
from backburn.errors import ArgumentError, BackendUnavailableError, FileFormatError
from backburn.models import Tokenizer
from backburn.models import tokenizer as module
from backburn.models.tokenizer_bounds import _growth

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A byte tokenizer with an end token and a chat template."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={}, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=257, special_tokens=["<end>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(["a"], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    configuration = {"eos_token": {"content": "<end>"}, "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(configuration))
    return tmp_path


def test_texts_and_tokens(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    for text in ("hello, world", "", "naïve 日本 🎉", "\n\t x"):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert "".join(tokenizer.decode_stream(tokens)) == text
    assert tokenizer.eos_token_id == 0
    assert [*tokenizer.decode_stream(tokenizer.encode("é🎉!"))] == ["é", "🎉", "!"]
    assert [*tokenizer.decode_stream(tokenizer.encode("🎉")[:2])] != []


def test_each_invalid_byte_becomes_one_replacement_character(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<unk>": 0, "a": 1, **{f"<0x{i:02X}>": 2 + i for i in range(256)}}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(words, [], unk_token="<unk>", byte_fallback=True))
    made.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)

    def pieces(text: bytes) -> list[str]:
        return [*tokenizer.decode_stream([1 if byte == ord("a") else 2 + byte for byte in text])]

    assert pieces("a€é日a".encode()) == ["a", "€", "é", "日", "a"]
    assert pieces("€".encode() + b"\xe4\xbd") == ["€", "\ufffd\ufffd"]
    assert pieces("€".encode() + b"\xe4a") == ["€", "\ufffda"]
    assert pieces(b"\xe4\xbd") == ["\ufffd\ufffd"]


def test_chats(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.decode(tokenizer.chat(messages)) == "<user>hi<assistant>"
    assert tokenizer.decode(tokenizer.chat(messages, generate=False)) == "<user>hi"
    for wrong in ("hi", messages[0], ["hi"]):
        with pytest.raises(ArgumentError, match=r"Tokenizer\.chat: messages are a list of mappings"):
            tokenizer.chat(wrong)  # type: ignore[arg-type]
    (folder / "chat_template.jinja").write_text("{{ messages | length }}{{ eos_token }}{{ {'a': 'é'} | tojson }}")
    assert tokenizer.decode(Tokenizer(folder).chat(messages)) == '1{"a": "é"}'
    (folder / "chat_template.jinja").unlink()
    named = {"chat_template": [{"name": "tools", "template": "x"}, {"name": "default", "template": "y"}]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    assert tokenizer.decode(Tokenizer(folder).chat(messages)) == "y"
    assert Tokenizer(folder).eos_token_id is None


@pytest.mark.parametrize("template", [
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}",
    "{% if tools is not none %}tools{% elif documents is not none %}documents{% endif %}{{ eos_token }}",
    "{% if pad_token is defined %}pad{% endif %}{{ bos_token }}{{ messages | tojson(indent=1) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
])  # fmt: skip
def test_templates_are_rendered_as_by_transformers(folder: Path, template: str) -> None:
    transformers = pytest.importorskip("transformers")
    (folder / "chat_template.jinja").write_text(template)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<end>")
    messages = [{"role": "user", "content": "é<"}, {"role": "assistant", "content": "yes"}]
    tokenizer = Tokenizer(folder)
    expected = theirs.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(tokenizer.chat(messages)) == expected.replace("<end>", "")


@pytest.mark.parametrize("template", [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}", "{{ raise_exception('no system') }}",
    "{% for", "{{ cycler.__init__.__globals__.os.system('true') }}", "{{ 1 / 0 }}",
    "{{ messages[0].content.missing.x }}",
])  # fmt: skip
def test_templates_run_in_a_sandbox(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ArgumentError, match=r"the template of .* raised"):
        Tokenizer(folder).chat([{"role": "user", "content": "hi"}])


def configured(folder: Path, **keys: Any) -> Path:
    """The folder with keys added to its configuration."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


def test_ignored_keys_of_the_configuration(folder: Path) -> None:
    keys = {
        "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "clean_up_tokenization_spaces": True,
        "model_max_length": 3, "padding_side": "left", "image_token": "<image>", "add_prefix_space": False,
        "added_tokens_decoder": {"0": {"content": "<end>", "special": True}},
    }  # fmt: skip
    assert Tokenizer(configured(folder, **keys)).encode("abcd") == Tokenizer(folder).encode("abcd")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"new_option": 1}, r"tokenizer_config\.json: 'new_option': not known here"),
        ({"add_prefix_space": True}, "add_prefix_space is True, unlike in tokenizer.json, which is used"),
        ({"bos_token": "<begin>"}, "the tokens '<begin>' are named, unlike in tokenizer.json"),
        ({"additional_special_tokens": ["<a>", "<end>", {"content": "<b>"}]}, "the tokens '<a>', '<b>' are named"),
        ({"added_tokens_decoder": {"300": {"content": "<c>"}}}, "the tokens '<c>' are named"),
    ],
)
def test_keys_that_contradict_tokenizer_json_warn(keys: dict[str, Any], words: str, folder: Path) -> None:
    with pytest.warns(MetadataWarning, match=words):
        Tokenizer(configured(folder, **keys))


def test_contradictory_lower_case_warns(folder: Path) -> None:
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    made.save(str(folder / "tokenizer.json"))
    with pytest.warns(MetadataWarning, match="do_lower_case is True, unlike in tokenizer.json"):
        Tokenizer(configured(folder, do_lower_case=True, tokenize_chinese_chars=True))


def test_split_special_tokens(folder: Path) -> None:
    assert Tokenizer(folder).encode("<end>") == [0]
    assert Tokenizer(configured(folder, split_special_tokens=True)).encode("<end>") != [0]


def test_damaged_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="takes a string"):
        Tokenizer(folder).encode(b"bytes")  # type: ignore[arg-type]
    (folder / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(FileFormatError, match=r"tokenizer_config\.json: is not JSON"):
        Tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(FileFormatError, match="not a JSON object"):
        Tokenizer(folder)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ArgumentError, match="no chat template"):
        Tokenizer(folder).chat([])
    for content, words in (("{}", "is not a tokenizer"), (b"\xff", "is not UTF-8")):
        (folder / "tokenizer.json").write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(FileFormatError, match=words):
            Tokenizer(folder)
    with pytest.raises(FileFormatError, match="there is no such file"):
        Tokenizer(tmp_path / "absent")


def saved(folder: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    return tree


def test_failures_of_the_tokenizers_package_are_backburn_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its panics are not an ``Exception``; a keyboard interrupt is passed on."""

    class Panic(BaseException):
        pass

    tokenizer = Tokenizer(folder)

    class Broken:
        error: BaseException = Panic("index out of bounds\x1b[2J")

        def encode(self, *given: Any, **options: Any) -> Any:
            raise self.error

        decode = token_to_id = encode

    monkeypatch.setattr(tokenizer, "_tokenizer", Broken())
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([0]), lambda: tokenizer.eos_token_id):
        for Broken.error in (Panic("index out of bounds\x1b[2J"), Exception("no decoder"), OverflowError("x" * 10_000)):
            with pytest.raises(FileFormatError, match=r"tokenizer\.json: fails on this input: ") as caught:
                call()
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 1000
        Broken.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            call()


def test_invalid_texts_and_tokens_are_refused(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    with pytest.raises(ArgumentError, match="half of a surrogate pair, at character 2"):
        tokenizer.encode("ab\ud800")
    for token in (-1, 2**32, 2**70):
        with pytest.raises(ArgumentError, match="takes token numbers, from 0 on"):
            tokenizer.decode([0, token])
    assert tokenizer.decode([2**32 - 1]) == ""


def test_streaming_decodes_only_recent_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(folder)
    decode = tokenizer.decode
    lengths: list[int] = []

    def counted(tokens: list[int]) -> str:
        lengths.append(len(tokens))
        return decode(tokens)

    monkeypatch.setattr(tokenizer, "decode", counted)
    part = tokenizer.encode("🎉")[:1]
    for tokens in ([0] * 1000, part * 1000, [0] * 500 + tokenizer.encode("é!") + part * 500):
        assert "".join(tokenizer.decode_stream(tokens)) == decode(tokens)
    assert max(lengths) < 200


def test_padding_and_truncation_of_files_are_ignored(folder: Path) -> None:
    """As in transformers; padding to 2**40 tokens would end the process."""
    tokens = Tokenizer(folder).encode("hello")
    padding = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<end>"}
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    tree = {**saved(folder), "padding": {**padding, "strategy": {"Fixed": 2**40}}, "truncation": truncation}
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    assert Tokenizer(folder).encode("hello") == tokens


DOUBLES = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPECIAL = {"SpecialToken": {"id": "<end>", "type_id": 0}}
TWICE = [{"Sequence": {"id": name, "type_id": 0}} for name in "AA"]
PAIR = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]


def around(single: list[Any], count: int = 1) -> dict[str, Any]:
    token = {"id": "<end>", "ids": [0] * count, "tokens": ["<end>"] * count}
    return {"type": "TemplateProcessing", "single": single, "pair": PAIR, "special_tokens": {"<end>": token}}


@pytest.mark.parametrize(("keys", "words"), [
    ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLES] * 40}}, "of one"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [DOUBLES] * 5}] * 8}}, "of one"),  # noqa: E501
    ({"normalizer": {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "a" * 9999}}, "of one"),
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 40}}, "of one"),
    ({"decoder": {"type": "Sequence", "decoders": [DOUBLES] * 40}}, "of one"),
    ({"post_processor": {"type": "Sequence", "processors": [around(TWICE)] * 40}}, "of one"),
    ({"post_processor": around([*PAIR[:1], *[SPECIAL] * 200], 200)}, "puts more than 10000 tokens around"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 2000}}, "2002 parts"),
    ({"model": {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "#", "vocab": {"?": 0},
                "max_input_chars_per_word": 9999}}, "max_input_chars_per_word"),
])  # fmt: skip
def test_tokenizers_that_expand_texts_too_much_are_refused(keys: dict[str, Any], words: str, folder: Path) -> None:
    """Doubling a letter forty times would exhaust memory."""
    (folder / "tokenizer.json").write_text(json.dumps({**saved(folder), **keys}))
    with pytest.raises(FileFormatError, match=words):
        Tokenizer(folder)


def test_tokenizers_with_usual_parts_are_read(tmp_path: Path) -> None:
    """With parts that expand texts as much as published tokenizers do."""
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    parts = [
        normalizers.NFD(), normalizers.NFKC(), normalizers.Lowercase(), normalizers.BertNormalizer(),
        normalizers.Replace("``", '"'), normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Prepend("_"),
        normalizers.Replace(" ", "▁"),
    ]  # fmt: skip
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "[CLS]": 1}, unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence(parts)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(), pre_tokenizers.Digits(), pre_tokenizers.Metaspace()]
    )
    template = processors.TemplateProcessing(single="[CLS] $A", pair="$A $B", special_tokens=[("[CLS]", 1)])
    for processor in (template, processors.BertProcessing(("a", 0), ("b", 1)), processors.ByteLevel()):
        made.post_processor = processor
        made.decoder = decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.BPEDecoder()])
        made.save(str(tmp_path / "tokenizer.json"))
        assert Tokenizer(tmp_path).encode("a")
    table = base64.b64encode(struct.pack("<I", 4) + b"trie" + b"a\0" + b"b" * 33 + b"\0").decode()
    assert _growth({"type": "Precompiled", "precompiled_charsmap": table}) == 33


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"])
def test_links_out_of_a_folder_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    bb.models.Llama(bb.models.LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                          num_attention_heads=2)).save_pretrained(inner)  # fmt: skip
    (inner / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (inner / name).unlink(missing_ok=True)
    (tmp_path / "secret").write_text(json.dumps(saved(folder)))
    (inner / name).symlink_to("../secret")
    with pytest.raises((FileFormatError, bb.errors.ConfigError), match=r"a link to .*secret, out of the folder"):
        bb.models.from_pretrained(inner) if name == "config.json" else Tokenizer(inner)
    before = (tmp_path / "secret").read_text()
    if name == "config.json":
        config = bb.models.GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=2)
        bb.models.GPT2(config).save_pretrained(inner)
        assert (tmp_path / "secret").read_text() == before
        assert type(bb.models.from_pretrained(inner)).__name__ == "GPT2"


@pytest.mark.parametrize("template", [
    "{{ 'a' * 3000000000 }}", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ raise_exception('\\x1b[2J' * 1000) }}",
])  # fmt: skip
def test_templates_are_bounded(folder: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bb.models.templates, "STEPS", 20_000)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ArgumentError, match=r"the template of .* raised") as caught:
        Tokenizer(folder).chat([{"role": "user", "content": "hi"}])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000


def test_absent_packages_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", absent)
    with pytest.raises(BackendUnavailableError, match=r"needs the package tokenizers: pip install 'backburn\[text\]'"):
        Tokenizer(folder)


def test_the_generate_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config: dict[str, Any] = {"vocab_size": 257, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
              "num_attention_heads": 2}  # fmt: skip
    bb.random.seed(0)
    model = bb.models.Llama(bb.models.LlamaConfig(**config)).eval()
    model.save_pretrained(folder)
    arguments = ["generate", str(folder), "hello", "--max-new-tokens", "8"]
    tokenizer = Tokenizer(folder)
    for extra, prompt in (
        ([], tokenizer.encode("hello")),
        (["--chat"], tokenizer.chat([{"role": "user", "content": "hello"}])),
    ):
        assert main([*arguments, *extra]) == 0
        tokens = bb.models.generate(model, prompt, 8, stop_tokens=0)
        assert capsys.readouterr().out == tokenizer.decode(tokens) + "\n"
    assert main([*arguments, "--temperature", "1", "--seed", "5", "--top-k", "40", "--backend", "numpy"]) == 0
    one = capsys.readouterr().out
    assert main([*arguments, "--temperature", "1", "--seed", "5", "--top-k", "40"]) == 0
    assert capsys.readouterr().out == one
    assert main([*arguments, "--top-p", "2"]) == 2
    assert "top_p is above 0 and at most 1" in capsys.readouterr().err
    assert main(["generate", str(folder / "absent"), "x"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_frozen_models_have_no_tokenizer(tmp_path: Path) -> None:
    frozen("llama").model("numpy").save_pretrained(tmp_path)
    with pytest.raises(FileFormatError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
