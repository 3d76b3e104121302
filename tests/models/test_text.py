"""Tokenizers: a vocabulary splits as `tokenizers` and SentencePiece split it, and text comes back piecewise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from ptxgen.errors import FileError, SpecError
from ptxgen.models.files import open_model
from ptxgen.models.text import Text
from ptxgen.models.text.bytelevel import CUTS
from ptxgen.models.text.gguf import text_of
from ptxgen.models.text.json_file import text_of as json_text_of
from ptxgen.models.text.llama2c import text_of as llama2c_text_of
from tests.support.models.vocabularies import KEY, SAMPLES, pieces, trained

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "examples" / "models"

# -- byte-level --------------------------------------------------------------------------------------------------------


def test_the_shipped_vocabulary_splits_as_its_tokenizer_json() -> None:
    theirs = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    for kind in ("f16", "q8_0"):
        text = open_model(SHIPPED / f"kjv-{kind}.gguf").text()
        for sample in SAMPLES:
            assert text.encode(sample) == theirs.encode(sample).ids, sample
            assert text.decode(text.encode(sample)) == sample


@pytest.mark.parametrize("name", CUTS)
def test_a_byte_level_vocabulary_splits_as_tokenizers_does(name: str) -> None:
    fields, theirs = trained(name)
    text = text_of(fields, "m.gguf")
    for sample in SAMPLES:
        assert text.split(sample) == theirs.encode(sample).ids
        assert text.decode(text.split(sample)) == sample


def test_control_tokens_are_found_in_a_prompt_and_print_nothing() -> None:
    fields, _ = trained("gpt-2")
    text = text_of(fields, "m.gguf")
    assert text.split("a<|endoftext|>a") == [*text.split("a"), 0, *text.split("a")]
    assert text.decode([0, *text.split("abc"), 0]) == "abc"
    assert text.decode([*text.split("abc"), 10**6]) == "abc"
    assert text.stops == {0}


@pytest.mark.parametrize("token", [-1, True, "a", 1.5], ids=repr)
def test_what_is_no_token_has_no_text(token: Any) -> None:
    text = text_of(trained("gpt-2")[0], "m.gguf")
    with pytest.raises(SpecError, match=rf"token: must be an int ≥ 0 \(got {token!r}\)"):
        text.decode([5, token])


def test_a_prompt_is_text() -> None:
    with pytest.raises(SpecError, match=r"prompt: must be a str \(got b'abc'\)"):
        text_of(trained("gpt-2")[0], "m.gguf").encode(b"abc")


def test_a_prompt_opens_with_bos_where_the_file_or_its_kind_says_so() -> None:
    for name, said, want in (
        ("gpt-2", None, None),
        ("llama-bpe", None, 0),
        ("gpt-2", True, 0),
        ("llama-bpe", False, None),
    ):
        fields, _ = trained(name)
        fields[f"{KEY}bos_token_id"] = 0
        if said is not None:
            fields[f"{KEY}add_bos_token"] = said
        assert text_of(fields, "m.gguf").bos == want


# -- pieces with scores ------------------------------------------------------------------------------------------------


def test_pieces_are_merged_as_tokenizers_merges_them() -> None:
    fields, theirs = pieces()
    text = text_of(fields, "m.gguf")
    for sample in filter(None, SAMPLES):
        assert text.split(sample) == theirs.encode(sample).ids, sample
        assert text.encode(sample)[0] == 1
        assert text.decode(text.encode(sample)) == sample


def test_without_a_space_prefix_a_text_begins_as_it_is() -> None:
    fields, _ = pieces()
    text = text_of(fields | {f"{KEY}add_space_prefix": False}, "m.gguf")
    assert text.decode(text.encode(" the")) == " the"
    assert text.split("the") != text_of(fields, "m.gguf").split("the")


def test_a_continuation_keeps_its_leading_space() -> None:
    text = text_of(pieces()[0], "m.gguf")
    tokens = text.split("the heaven")
    assert text.decode(tokens) == "the heaven"
    stream = text.stream(continues=True)
    assert "".join(map(stream.push, tokens)) == text.decode(tokens, continues=True) == " the heaven"


def test_a_character_appears_with_the_last_of_its_bytes() -> None:
    text = text_of(pieces()[0], "m.gguf")
    stream = text.stream(continues=True)
    said = [stream.push(3 + byte) for byte in "é👧".encode()]
    assert said == ["", "é", "", "", "", "👧"]
    assert [stream.push(3 + 0xE2), stream.push(3 + ord("x")), stream.push(3 + 0xF0), stream.end()] == [
        "",
        "\ufffdx",
        "",
        "\ufffd",
    ]


# -- other files -------------------------------------------------------------------------------------------------------


def written(folder: Path, tokenizer: Tokenizer, **config: object) -> Text:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config))
    return json_text_of(folder)


def test_a_tokenizer_json_of_either_kind_streams_its_bytes(tmp_path: Path) -> None:
    theirs = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    text = written(tmp_path, theirs, eos_token_id=[0, 7, 99999])
    assert text.stops == {0, 7}
    for sample in SAMPLES:
        assert text.encode(sample) == theirs.encode(sample).ids
        assert text.decode(text.encode(sample)) == sample
    fields, other = pieces()
    text = written(tmp_path, other)
    for sample in filter(None, SAMPLES):
        assert text.encode(sample) == text_of(fields, "m.gguf").split(sample)
        assert text.decode(text.encode(sample)) == other.decode(other.encode(sample).ids)


def test_llama2c_tokenizers_are_read(tmp_path: Path) -> None:
    import struct

    fields, _ = pieces()
    tokens, scores = fields[f"{KEY}tokens"], fields[f"{KEY}scores"]
    spelt = [token.replace("▁", " ").encode() for token in tokens]
    spelt[1:3] = [b"\n<s>\n", b"\n</s>\n"]
    data = b"".join(struct.pack("<fi", float(s), len(t)) + t for s, t in zip(scores, spelt, strict=True))
    (tmp_path / "tokenizer.bin").write_bytes(struct.pack("<i", 20) + data)
    text, want = (
        llama2c_text_of([tmp_path / "absent.bin", tmp_path / "tokenizer.bin"], len(tokens)),
        text_of(fields, "m"),
    )
    for sample in filter(None, SAMPLES):
        assert text.encode(sample) == want.encode(sample)
        assert text.decode(text.encode(sample)) == sample


def test_a_real_tokenizers_text_comes_back() -> None:
    folder = ROOT.parent / "shared" / "models"
    if not (folder / "tok512.bin").exists():
        pytest.skip("needs tok512.bin, which is not part of the project")
    expected = json.loads((folder / "aidreams260K.expected.json").read_text())
    text = open_model(folder / "aidreams260K.bin").text()
    stream = text.stream(continues=True)
    assert "".join(map(stream.push, expected["tokens"])) == expected["text"]
    assert text.encode(expected["text"].removeprefix(" ")) == [expected["start"], *expected["tokens"]]


DAMAGED = {
    "tokens": ([], r"tokens: must be a list of strings"),
    "token_type": (np.ones(3, np.int32), r"token_type: must be \d+ integers"),
    "model": ("bert", r"model: must be llama or gpt2 \(got 'bert'\)"),
    "pre": ("poro-chat", r"pre: must be one of gpt-2, .* \(got 'poro-chat'\)"),
    "merges": (["ab"], r"merges: must be a list of pairs"),
    "bos_token_id": (4000, r"bos_token_id: must be a token from 0 to \d+ \(got 4000\)"),
    "eos_token_id": (-1, r"eos_token_id: must be a token"),
}


@pytest.mark.parametrize("key", DAMAGED)
def test_a_damaged_vocabulary_is_named(key: str) -> None:
    value, text = DAMAGED[key]
    fields, _ = trained("gpt-2")
    with pytest.raises(FileError, match=text):
        text_of(fields | {KEY + key: value}, "m.gguf")


def test_a_vocabulary_that_would_take_long_is_refused() -> None:
    fields, _ = pieces()
    with pytest.raises(FileError, match=r"tokens: must be of at most 65536 characters each \(got 70000\)"):
        text_of(fields | {f"{KEY}tokens": ["a" * 70_000]} | {f"{KEY}token_type": np.ones(1, np.int32)}, "m.gguf")
    n = 66_000
    many = {f"{KEY}tokens": [f"t{i}" for i in range(n)], f"{KEY}token_type": np.full(n, 4, np.int32)}
    with pytest.raises(FileError, match=r"token_type: must say of at most 65536 tokens .* \(got 66000\)"):
        text_of(fields | many, "m.gguf")


def test_a_merge_of_no_token_and_scores_of_another_length_are_named() -> None:
    fields, _ = trained("gpt-2")
    with pytest.raises(FileError, match=r"tokenizer.ggml.merges: "):
        text_of(fields | {f"{KEY}merges": ["no token"]}, "m.gguf")
    fields, _ = pieces()
    with pytest.raises(FileError, match=r"scores: must be \d+ numbers"):
        text_of(fields | {f"{KEY}scores": np.ones(3, np.float32)}, "m.gguf")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"tokenizer.json: cannot be read \(No such file"):
        json_text_of(tmp_path)
