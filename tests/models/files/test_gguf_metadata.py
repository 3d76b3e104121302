"""Metadata of GGUF files: what is read, what says nothing, and what is refused by its own name."""

from __future__ import annotations

import contextlib
import math
import struct
import warnings
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from ptxgen.errors import ConfigWarning, FileError, SpecError
from ptxgen.models.files import open_model
from tests.support.models.families import CONFIGS
from tests.support.models.model_files import ARCHS, rewritten, write_gguf

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
EXT, PATTERN = "rope.scaling.yarn_ext_factor", "attention.sliding_window_pattern"
CHANGING: list[tuple[str, dict, dict]] = [
    ("llama", {"expert_count": 8}, {}),
    ("llama", {"attention.sliding_window": 8}, {}),
    ("llama", {"attention.causal": False}, {}),
    ("llama", {PATTERN: 2}, {}),
    ("llama", {PATTERN: [False, True, False]}, {}),
    ("llama", {PATTERN: [float("nan")] * 3}, {}),
    ("phi3", {PATTERN: [False, False, False]}, {}),
    ("gemma2", {"rope.freq_base_swa": 5e5}, {}),
    ("llama", {"rope.scaling.yarn_attn_factor": 2.0}, {}),
    ("qwen2", {EXT: 0.0}, YARN),
    ("qwen2", {EXT: 1.0}, LINEAR),
    ("qwen2", {EXT: "1"}, {}),
]  # fmt: skip


def with_metadata(path: Path, family: str, metadata: dict, **changes) -> Path:
    """A small model with further metadata of its architecture."""
    arch = gguf.MODEL_ARCH_NAMES[ARCHS[family][0]]
    extra = {f"{arch}.{key}": value for key, value in metadata.items()}
    return write_gguf(path, family, extra=extra, **changes)


@pytest.mark.parametrize(("family", "changing", "beside"), CHANGING, ids=str)
def test_metadata_that_changes_what_is_computed_is_refused(
    family: str, changing: dict, beside: dict, tmp_path: Path
) -> None:
    path = with_metadata(tmp_path / "m.gguf", family, changing | beside)
    with pytest.raises(FileError, match=rf"{family}.{next(iter(changing))}: is not covered in a {family} model \(got "):
        open_model(path)


LLAMA = ("embedding_length", "block_count", "context_length", "feed_forward_length", "attention.head_count",
         "attention.layer_norm_rms_epsilon")  # fmt: skip


@pytest.mark.parametrize(
    ("family", "key"), [*(("llama", key) for key in LLAMA), ("gemma3_text", "attention.sliding_window")]
)
def test_a_key_that_llama_cpp_requires_is_missed_under_its_own_name(family: str, key: str, tmp_path: Path) -> None:
    """A misspelt one is warned of, with the one that was meant."""
    path = write_gguf(tmp_path / "m.gguf", family)
    arch = gguf.MODEL_ARCH_NAMES[ARCHS[family][0]]
    right, wrong = (f"{arch}.{name}".encode() for name in (key, f"{key[:-2]}x{key[-1]}"))
    length = struct.pack("<Q", len(right))
    rewritten(path, lambda data: data.replace(length + right, length + wrong))
    warned = pytest.warns(ConfigWarning, match=rf"m.gguf: {wrong.decode()}: is not known \(got .*; nearest: {key}\)")
    lacks = rf"m.gguf: lacks {right.decode()} \(it has {wrong.decode()}\), which a {arch} model needs"
    with warned, pytest.raises(FileError, match=lacks):
        open_model(path, max_len=8)


def test_a_key_without_which_llama_cpp_has_a_value_has_that(tmp_path: Path) -> None:
    """Not what the family's class of transformers would take."""
    for family in ("gemma3_text", "smollm3", "llama"):
        path = write_gguf(tmp_path / "m.gguf", family, num_key_value_heads=CONFIGS[family]["num_attention_heads"])
        for key in (b".rope.freq_base", b".attention.head_count_kv"):
            length = struct.pack("<Q", len(arch := gguf.MODEL_ARCH_NAMES[ARCHS[family][0]].encode()) + len(key))
            path.write_bytes(path.read_bytes().replace(length + arch + key, length + b"_" * len(arch) + key))
        spec = open_model(path).spec
        full = next(kind for kind in spec.shape.kinds if kind.rope and not kind.window)
        assert (full.rope.theta, spec.shape.n_kv_heads) == (10000.0, spec.shape.n_heads)


def test_linear_scaling_without_a_factor_is_none(tmp_path: Path) -> None:
    said = open_model(with_metadata(tmp_path / "m.gguf", "llama", {"rope.scaling.type": "linear"})).spec
    assert said == open_model(with_metadata(tmp_path / "n.gguf", "llama", {})).spec


def test_keys_that_are_not_known_are_warned_of_once(tmp_path: Path) -> None:
    more = {"rope.freq_bose": 1e6, "foo_bar": 7, "attention.key_length_swa": 8, "vocab_size": 3, "pooling_type": 1}
    path = with_metadata(tmp_path / "m.gguf", "llama", more)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_model(path)
    assert [str(one.message) for one in caught] == [
        f"{path}: llama.rope.freq_bose: is not known (got 1000000.0; nearest: rope.freq_base)",
        f"{path}: llama.foo_bar: is not known (got 7)",
        f"{path}: llama.attention.key_length_swa: is not known (got 8; nearest: attention.key_length)",
    ]


MISTAKEN: list[tuple[str, dict, str]] = [
    ("llama", {"attention.head_count": 0}, "llama.attention.head_count: must be an integer from 1 to"),
    ("llama", {"attention.head_count_kv": 3}, "llama.attention.head_count_kv: must divide llama.attention.head_count="),
    ("llama", {"block_count": 1 << 30}, r"llama.block_count: must be an integer from 1 to 10000 \(got 1073741824\)"),
    ("llama", {"rope.freq_base": 0.5}, r"llama.rope.freq_base: must be a number above 1, .* \(got 0.5\)"),
    ("llama", {"attention.layer_norm_rms_epsilon": 0.0}, "llama.attention.layer_norm_rms_epsilon: must be a number of"),
    ("qwen2", YARN | {"rope.scaling.factor": -1.0}, r"qwen2.rope.scaling.factor: must be a number of .*got -1.0\)"),
    ("qwen2", {"rope.scaling.type": "odd"}, r"qwen2.rope.scaling.type: must be one of default, .*\(got 'odd'\)"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "wrong", "text"), MISTAKEN, ids=str)
def test_a_value_that_breaks_a_rule_is_named_as_the_file_does(
    family: str, wrong: dict, text: str, tmp_path: Path
) -> None:
    path = with_metadata(tmp_path / "m.gguf", family, wrong)
    with pytest.raises(SpecError, match=rf"^{path}: {text}"):
        open_model(path)


def test_a_file_without_its_table_of_tokens_lacks_that(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", extra={"llama.vocab_size": 320})
    rewritten(path, lambda data: data.replace(b"token_embd.weight", b"token_embd.weiget"))
    with pytest.raises(FileError, match=r"m.gguf: lacks token_embd.weight, which a llama model needs"):
        open_model(path)


SAYS_NOTHING: list[tuple[str, dict, dict]] = [
    ("llama", {"attention.causal": True, "expert_count": 0}, {}),
    ("llama", {PATTERN: [False, False, False]}, {}),
    ("llama", {PATTERN: 1}, {}),
    ("phi3", {PATTERN: [1, 1, 1]}, {}),
    ("llama", {"rope.freq_base_swa": 5e5}, {}),
    ("gemma2", {"rope.freq_base_swa": 1e4}, {}),
    *(("llama", {EXT: value}, {}) for value in (-1.0, 0.0, 0.5, 1)),
    *(("qwen2", {EXT: value}, YARN) for value in (-1.0, 1.0)),
    *(("qwen2", {EXT: value}, LINEAR) for value in (-1.0, 0.0)),
]


@pytest.mark.parametrize(("family", "nothing", "beside"), SAYS_NOTHING, ids=str)
def test_metadata_that_says_what_is_so_anyway_is_taken(
    family: str, nothing: dict, beside: dict, tmp_path: Path
) -> None:
    without = open_model(with_metadata(tmp_path / "m.gguf", family, beside))
    assert open_model(with_metadata(tmp_path / "n.gguf", family, nothing | beside)).spec == without.spec


@pytest.mark.parametrize("factor", [1.0, 4, 4.0])
def test_a_factor_of_rotated_elements_multiplies_yarns(factor: float, tmp_path: Path) -> None:
    metadata = YARN | {"rope.scaling.factor": factor}
    plain, halved = (
        open_model(with_metadata(tmp_path / f"{len(more)}.gguf", "qwen2", metadata | more)).spec.layer(0).rope
        for more in ({}, {"rope.scaling.attn_factor": 0.5})
    )
    assert plain is not None
    assert plain.attention_factor == pytest.approx(0.1 * math.log(factor) + 1)
    assert halved == replace(plain, attention_factor=pytest.approx(plain.attention_factor / 2))


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_alone_is_of_linear_scaling(key: str, tmp_path: Path) -> None:
    found = open_model(with_metadata(tmp_path / "m.gguf", "llama", {key: 4.0})).spec
    assert found == open_model(with_metadata(tmp_path / "n.gguf", "llama", LINEAR)).spec
    plain = open_model(with_metadata(tmp_path / "o.gguf", "llama", {})).spec
    assert plain != found
    assert plain == open_model(with_metadata(tmp_path / "p.gguf", "llama", {key: 0.0})).spec


SCALING_REFUSED: list[tuple[str, dict, str]] = [
    ("llama", {"attn_factor": 2.0}, r"attn_factor: must be 1 without yarn or longrope \(got 2.0\)"),
    ("llama", {"attn_factor": [1.0, 2.0]}, r"attn_factor: must be a positive number \(got array\(\[1., 2.\]"),
    ("llama", {"type": "yarn", "attn_factor": "x"}, r"attn_factor: must be a positive number \(got 'x'\)"),
    (
        "llama",
        {"type": "yarn", "attn_factor": 0.5},
        r"factor: must be a positive number beside attn_factor \(it is ab",
    ),
    ("llama", {"type": [1, 2]}, r"scaling.type: must be a string \(got array\(\[1, 2\]"),
    ("phi3", {"type": "longrope", "attn_factor": 1.5}, r"rope_factors_short.weight: must be a list of 4 numbers"),
]


@pytest.mark.parametrize(("family", "scaling", "text"), SCALING_REFUSED, ids=str)
def test_scaling_that_cannot_be_is_named(family: str, scaling: dict, text: str, tmp_path: Path) -> None:
    metadata = {f"rope.scaling.{key}": value for key, value in scaling.items()}
    with pytest.raises((FileError, SpecError), match=text):
        open_model(with_metadata(tmp_path / "m.gguf", family, metadata))


@pytest.mark.parametrize("pattern", [0, 1, 3, [True, False, False, True, True, False], [1, 0, 0, 1, 1, 0]], ids=str)
@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_a_file_says_which_layers_have_the_window(family: str, pattern: int | list, tmp_path: Path) -> None:
    path = with_metadata(tmp_path / "m.gguf", family, {PATTERN: pattern}, num_hidden_layers=6, rope_theta=1e6)
    spec = open_model(path).spec
    flags = [layer % pattern != 0 if pattern else True for layer in range(1, 7)] if type(pattern) is int else pattern
    assert [spec.layer(layer).window for layer in range(6)] == [6 if one else 0 for one in flags]
    local = 1e4 if family == "gemma3_text" else 1e6
    assert [spec.layer(layer).rope.theta for layer in range(6)] == [local if one else 1e6 for one in flags]


def test_a_file_says_the_base_of_layers_with_a_window(tmp_path: Path) -> None:
    path = with_metadata(tmp_path / "m.gguf", "gemma3_text", {"rope.freq_base_swa": 5e5, PATTERN: 2}, rope_theta=1e6)
    assert [open_model(path).spec.layer(layer).rope.theta for layer in range(6)] == [5e5, 1e6] * 3


@pytest.mark.parametrize(
    "pattern",
    [
        -1,
        True,
        2.0,
        "x",
        [6],
        [True, False],
        [True] * 7,
        [2, 0, 1, 5, 0, 0],
        [1.0] * 6,
        [1.5] * 6,
        ["full_attention"] * 6,
    ],
    ids=str,
)
def test_a_pattern_that_cannot_be_is_named(pattern: object, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    if pattern == -1:  # of which there is no unsigned number
        with_metadata(path, "gemma3_text", {PATTERN: 0x1234567})
        key, old, new = PATTERN.encode(), (4, 0x1234567), (5, -1)
        rewritten(path, lambda data: data.replace(key + struct.pack("<Ii", *old), key + struct.pack("<Ii", *new)))
    else:
        with_metadata(path, "gemma3_text", {PATTERN: pattern})
    text = rf"gemma3.{PATTERN}: must be a number, or true or false for each of 6 layers \(got "
    with pytest.raises(FileError, match=text):
        open_model(path)


def test_a_pattern_beside_more_layers_than_there_can_be_names_these(tmp_path: Path) -> None:
    path = with_metadata(tmp_path / "m.gguf", "gemma3_text", {PATTERN: 2})
    key = b"gemma3.block_count" + struct.pack("<I", 4)
    rewritten(path, lambda data: data.replace(key + struct.pack("<I", 6), key + struct.pack("<I", 1 << 30)))
    with pytest.raises(FileError, match=r"gemma3.block_count: must be at most the file's \d+ tensors \(got 1073741824"):
        open_model(path)


ODD = ([1.0, 2.0], [True, False], ["a", "b"], "x", float("nan"))
KEYS = (
    "embedding_length", "feed_forward_length", "block_count", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "context_length", "attention.layer_norm_rms_epsilon",
    "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count", "rope.scale_linear", "attention.sliding_window",
    PATTERN, "attn_logit_softcapping", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor",
    "rope.scaling.original_context_length", EXT, "rope.scaling.yarn_beta_fast",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning", "ignore::UserWarning")
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "phi3"])
def test_a_value_of_another_type_is_no_crash(family: str, key: str, tmp_path: Path) -> None:
    for odd in ODD:
        for beside in ({}, YARN):
            path = with_metadata(tmp_path / "m.gguf", family, beside | {key: odd})
            with contextlib.suppress(FileError, SpecError):  # some are never read
                open_model(path)


@pytest.mark.parametrize("parts", [2, [1, 2]], ids=str)
def test_a_file_that_is_a_part_is_named(parts: object, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", extra={"split.count": parts})
    with pytest.raises(FileError, match=r"split.count: a model in .* files is not covered; merge them first"):
        open_model(path)
