"""`ptxgen complete`: text to standard output, figures to standard error, one sentence for what cannot be had."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ptxgen.cli._main import invoke
from ptxgen.cli.complete import _bar
from ptxgen.models.files import ModelFile, open_model, quantised
from ptxgen.models.reference import ReferenceModel
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.complete import Completion, Figures
from tests.support.models.families import torch_name
from tests.support.models.model_files import write_folder

MODELS = Path(__file__).parents[2] / "examples" / "models"
F16, Q8 = str(MODELS / "kjv-f16.gguf"), str(MODELS / "kjv-q8_0.gguf")
CPU = ["--device", "cpu"]


@pytest.mark.parametrize("path", [F16, Q8])
def test_a_text_is_completed_as_the_float64_model_would(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompt, count = "And it came to pass", 12
    assert invoke(["complete", path, prompt, "--max-tokens", str(count), *CPU]) == 0
    out, err = capsys.readouterr()
    file = open_model(path)
    text = file.text()
    reference = ReferenceModel(file.spec, {name: file.values(name) for name in file.tensors})
    assert out == prompt + text.decode(reference.generate(text.encode(prompt), count)) + "\n"
    assert re.search(r"llama 5 × 192, context 64, on cpu; loaded in [\d.]+ s; prompt of \d+ tokens in", err)
    assert re.search(r"; 12 tokens in [\d.]+ s, [\d.]+ tokens/s\n$", err)


def test_a_text_by_weights_in_other_formats(capsys: pytest.CaptureFixture[str]) -> None:
    prompt, count, options = "And it came to pass", 12, ["--quantise", "q4_0", "--quantise-head", "q8_0"]
    assert invoke(["complete", F16, prompt, "--max-tokens", str(count), *options, *CPU]) == 0
    file = quantised(open_model(F16), "q4_0", "q8_0")
    text = file.text()
    reference = ReferenceModel(file.spec, {name: file.values(name) for name in file.tensors})
    assert capsys.readouterr().out == prompt + text.decode(reference.generate(text.encode(prompt), count)) + "\n"


def test_weights_that_are_quantised_twice_are_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["complete", Q8, "And", "--max-tokens", "2", "--quantise", "q4_0", *CPU]) == 0
    assert capsys.readouterr().err.count("warning: ") == 1


def test_the_context_has_room_for_what_was_asked() -> None:
    assert Completion(Q8, "a", 32).file.spec.shape.max_len == 64
    assert Completion(Q8, "a", 100).file.spec.shape.max_len == 128
    assert Completion(Q8, "a", 5000).file.spec.shape.max_len == 512
    assert Completion(Q8, "a", 32, max_len=40).file.spec.shape.max_len == 40


@pytest.mark.parametrize(("max_tokens", "written"), [(40, 38), (38, 38), (5, 5)])
def test_a_full_context_is_said(max_tokens: int, written: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["complete", Q8, "And", "--max-tokens", str(max_tokens), "--max-len", "39", *CPU]) == 0
    err = capsys.readouterr().err
    assert f"; {written} tokens in" in err
    full = f"the context is full: {written} of {max_tokens} tokens were written\n"
    assert err.endswith(full) == (max_tokens > written)


def written(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert invoke(["complete", Q8, "And", "--max-tokens", "12", *words, *CPU]) == 0
    return capsys.readouterr().out


def test_a_seed_draws_the_same_text_and_another_seed_another(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = ("--temperature", "1", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01")
    first, again, other = (written(capsys, *drawn, "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert len({first, other, written(capsys)}) == 3


def test_a_penalty_repeats_less(capsys: pytest.CaptureFixture[str]) -> None:
    assert written(capsys, "--penalty", "1.5") != written(capsys)


def test_the_same_model_in_a_folder_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = open_model(F16)
    config = json.loads((MODELS.parent / "train" / "config.json").read_text())
    arrays = {torch_name(name): in_halves(file, name).astype(np.float16) for name in file.tensors}
    shutil.copy(MODELS / "tokenizer.json", write_folder(tmp_path, config, arrays))
    said = []
    for path in (F16, str(tmp_path)):
        assert invoke(["complete", path, "And it came to pass", "--max-tokens", "12", *CPU]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def in_halves(file: ModelFile, name: str) -> np.ndarray:
    """A tensor as Hugging Face's files have it: rows of q and k from adjacent pairs to halves of a head."""
    values, dim = file.values(name), file.spec.shape.head_dim
    if not name.endswith(("q_proj", "k_proj")):
        return values
    return values.reshape(-1, dim // 2, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def test_a_configuration_is_warned_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = open_model(F16)
    config = json.loads((MODELS.parent / "train" / "config.json").read_text()) | {"hiden_size": 7}
    arrays = {torch_name(name): in_halves(file, name).astype(np.float16) for name in file.tensors}
    shutil.copy(MODELS / "tokenizer.json", write_folder(tmp_path, config, arrays))
    for words in ([], ["--max-len", "16"]):
        assert invoke(["complete", str(tmp_path), "And", "--max-tokens", "2", *words, *CPU]) == 0
        err = capsys.readouterr().err
        assert err.count("warning:") == 1
        assert "config.json: hiden_size: is not known (got 7; nearest: hidden_size)\n" in err


def test_a_context_behind_the_models_own_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["complete", Q8, "And", "--max-tokens", "2", "--max-len", "600", *CPU]) == 0
    warned = (
        r"^ptxgen: warning: \S*kjv-q8_0.gguf: llama.context_length: the model's own positions end at 512, .* 600\)\n"
    )
    assert re.match(warned, capsys.readouterr().err)


def test_a_full_context_ends_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["complete", Q8, "And", "--max-len", "8", "--max-tokens", "50", *CPU]) == 0
    assert "prompt of 2 tokens" in (said := capsys.readouterr().err)
    assert "; 7 tokens in" in said  # the last one needs no place in the cache


def test_a_stop_token_ends_the_text_unseen() -> None:
    completion = Completion(F16, "And God said", 8)
    model = completion.load(open_device("cpu"))
    whole = "".join(completion.run(model))
    third = completion.written[2]
    again = Completion(F16, "And God said", 8)
    again.text = type(again.text)(again.text.pieces, again.text.split, again.text.bos, frozenset({third}))
    assert whole.startswith("".join(again.run(model)))
    assert again.written == completion.written[: completion.written.index(third)]


def test_a_few_tokens_have_no_rate() -> None:
    assert str(Figures(3, 0.5, 1)) == "prompt of 3 tokens in 0.50 s; 1 tokens"
    assert str(Figures(3, 0.5, 5, 2.0)) == "prompt of 3 tokens in 0.50 s; 5 tokens in 2.00 s, 2.0 tokens/s"


def test_a_damaged_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(Q8).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: len(data) // 2])
    (tmp_path / "note.txt").write_text("not a model, but long enough to be read as one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    for name, text in (
        ("cut.gguf", "ends behind the end of the file"),
        ("note.txt", "must be a .gguf file, a folder with config.json"),
        ("config.json", "checkpoint (.bin); name its folder (it begins with b'{\"mo')"),
        ("empty", "config.json: cannot be read"),
        (".", "model_type: must be one of"),
    ):
        assert invoke(["complete", str(tmp_path / name), "And", *CPU]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert text in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["absent.gguf", "And"], "'absent.gguf' does not exist"),
        ([Q8, "In the", "--max-len", "2"], r"the context is 2 \(got 3; a context of 4 has room\)"),
        ([Q8, "And " * 600], r"prompt: must be 1 to 511 tokens, the context is 512 \(got \d+\)"),
        ([Q8, "And \udcff"], r"prompt: must be text that UTF-8 spells \(got 'And \\udcff'\)"),
        ([Q8, "And", "--max-tokens", "0"], "0 is not in the range"),
        ([Q8, "And", "--kv-dtype", "f7"], "f7"),
        ([Q8, "And", "--quantise", "q4k"], r"--quantise: must be one of .* \(got 'q4k'; nearest: q4_k\)"),
        ([Q8, "And", "--quantise", "q4_k"], r"--quantise: \S+kjv-q8_0.gguf: blk.0.attn_q.weight in q4_k: .*; possible"),
        ([Q8, "And", "--quantise-head", "q6_k"], r"--quantise-head: \S+: token_embd.weight in q6_k: cols: must be"),
        ([Q8, "And", "--device", "tpu"], "tpu"),
        ([Q8, "And", "--temperature", "-1"], r"--temperature: must be .* \(got -1.0;"),
        ([Q8, "And", "--top-p", "nan"], r"--top-p: "),
        ([Q8, "And", "--top-k", "40"], "--top-k: goes with --temperature, without which the likeliest token is taken"),
        ([Q8, "And", "--top-p", "0.9"], "--top-p: goes with --temperature"),
        ([Q8, "And", "--min-p", "0.1"], "--min-p: goes with --temperature"),
        ([Q8, "And", "--seed", "7"], "--seed: goes with --temperature"),
        (
            [Q8, "And", "--persistent", "--temperature", "1"],
            "--persistent: has no .* drawn .*; leave out --temperature",
        ),
        ([Q8, "And", "--persistent", "--penalty", "2"], "--persistent: has no .* penalised; leave out --penalty"),
        ([Q8, "And", "--persistent", *CPU], r"--persistent: weights must be in bf16 \(got q8_0\); without it"),
    ],
)
def test_wrong_use_is_one_sentence(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["complete", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(text, err)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_many_weights_have_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for total, shown in ((128 << 20, True), (1 << 20, False)):
        monkeypatch.setattr("sys.stderr", terminal := Terminal())
        with _bar() as told:
            assert told is not None
            told(total // 2, total)
            told(total, total)
        assert ("128.0/128.0 MiB" in terminal.getvalue()) == shown
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with _bar() as told:
        assert told is None
