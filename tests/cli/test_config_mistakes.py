"""Wrong configurations, and options that mean nothing where they stand: one sentence, exit 2, nothing left behind."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ptxgen.cli._main import invoke

SMALL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 32,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "intermediate_size": 64,
         "rms_norm_eps": 1e-5}  # fmt: skip
POSITIVE = "must be an integer from 1 to 2147483647 (got"
FACTOR = "rope_scaling: factor: must be a number of at least 1e-18, at most 1e+18 (got"

# What is changed in a configuration that is right, and what is said of it behind the file's name.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_attention_heads": True}, f"num_attention_heads: {POSITIVE} True)"),
    ({"hidden_size": 64.5}, f"hidden_size: {POSITIVE} 64.5)"),
    ({"hidden_size": [64]}, f"hidden_size: {POSITIVE} [64])"),
    ({"hidden_size": None}, f"hidden_size: {POSITIVE} null)"),
    ({"num_hidden_layers": -1}, "num_hidden_layers: must be an integer from 1 to 10000 (got -1)"),
    ({"num_hidden_layers": 10**30}, "num_hidden_layers: must be an integer from 1 to 10000 (got 1000000000000"),
    ({"num_key_value_heads": 0}, f"num_key_value_heads: {POSITIVE} 0)"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: must divide num_attention_heads=4 (got 3)"),
    ({"vocab_size": "32"}, f"vocab_size: {POSITIVE} '32')"),
    ({"max_position_embeddings": None}, f"max_position_embeddings: {POSITIVE} null)"),
    ({"max_position_embeddings": 1 << 24}, "max_position_embeddings: above 1048576 max_len must say how many positio"),
    ({"head_dim": 12}, "head_dim: must be a multiple of 8 from 8 to 512 (got 12; nearest: 8 or 16)"),
    ({"torch_dtype": "float8"}, "torch_dtype: must be one of bfloat16, float16, float32 (got 'float8')"),
    ({"rope_theta": 0}, "rope_theta: must be a number above 1, at most 1e+18 (got 0)"),
    ({"rope_theta": "1e4"}, "rope_theta: must be a number above 1, at most 1e+18 (got '1e4')"),
    ({"rope_theta": float("nan")}, "rope_theta: must be a number above 1, at most 1e+18 (got nan)"),
    ({"rope_theta": float("inf")}, "rope_theta: must be a number above 1, at most 1e+18 (got inf)"),
    ({"rope_scaling": "yarn"}, "rope_scaling: must be a JSON object (got 'yarn')"),
    ({"rope_scaling": {"type": "nonesuch"}}, "rope_scaling: type: must be one of default, linear, llama3, yarn, "),
    ({"rope_scaling": {"type": "linear"}}, f"{FACTOR[:-4]}(it is absent)"),
    ({"rope_scaling": {"type": "linear", "factor": -1}}, f"{FACTOR} -1)"),
    ({"layer_types": "full"}, "layer_types: must be 1 times full_attention in models of type llama (got 'full')"),
    ({"model_type": ["llama"]}, "model_type: must be one of llama, mistral, "),
    ({"model_type": None}, "model_type: must be one of llama, mistral, "),
    ({"quantization_config": "fp8"}, "quantization_config: must be a JSON object (got 'fp8')"),
]  # fmt: skip

# Files that are no configurations.
FILES: list[tuple[bytes, str]] = [
    (b"", "must be JSON (line 1, column 1: Expecting value)"),
    (b"null", "must be a JSON object (got NoneType)"),
    (b'"text"', "must be a JSON object (got str)"),
    (json.dumps(SMALL).encode("utf-16"), "must be a text file with JSON (got bytes that are not UTF-8)"),
    (b"[" * 100_000, "must be JSON of a sane size (maximum recursion depth exceeded"),
    (b'{"hidden_size": ' + b"9" * 5000 + b"}", "must be JSON of a sane size (Exceeds the limit (4300 digits)"),
]

# Commands over a configuration that is right.
OPTIONS = [
    ("generate --max-len 64 {A} --target sm_80", "--max-len: goes with --config"),
    ("generate --layout hnd {A} --target sm_80", "--layout: goes with --config"),
    ("generate {C} --target sm_80 -o out --max-len 99999999999", "--max-len: must be from 1 to 1073741824 "),
    ("generate {C} --target sm_80 -o out --page-size 131072", "--page-size: must be from 0 to 65536 (got"),
    ("generate {C} --target sm_80 -o out --weights q4_k", "embed_tokens: q4_k: cols: must be a multiple of 256 from 2"),
    ("generate {A} --target sm_80 --entry=", "--entry: must be letters, digits and _, a letter first (got '')"),
    ("generate {A} --target sm_80 --entry WARP_SZ", "entry: must be another name than PTX's constant (got 'WARP_SZ')"),
    ("export {A} --target sm_80 -o out --name=", "--name: must be letters, digits and _, a letter first (got '')"),
    ("export {C} {A} --target sm_80 -o out", "export: a kernel type, --config or --model: one of them"),
    ("export --model m {A} --target sm_80 -o out", "export: a kernel type, --config or --model: one of them"),
    ("export -o out {A} --target sm_80", "--output: goes behind the kernel type, or with --config"),
    ("export --model m --target sm_80 -o out --strict", "export --model: --strict goes with --config"),
    ("export --model m --target sm_80 -o out --page-size 16 --layout nhd",
     "export --model: --page-size, --layout goes with --config"),
    ("doctor --model m {C}", "doctor: --model or --config, not both"),
    ("doctor --max-len 5", "--max-len: goes with --model or --config"),
    ("doctor --target sm_80", "--target: goes with --model or --config"),
    ("doctor --kv-dtype f16", "--kv-dtype: goes with --model"),
    ("doctor {C} --rings 4", "--rings: goes with --model"),
    ("doctor {C} --quantise q8_0", "--quantise: goes with --model"),
    ("doctor --quantise-head q8_0", "--quantise-head: goes with --model"),
    ("export {C} --quantise q8_0 --target sm_80 -o out", "--quantise: goes with --model"),
    ("export --quantise q8_0 {A} --target sm_80 -o out", "--quantise: goes with --model"),
    ("export --model m --quantise q9 --target sm_80 -o out", "--quantise: must be one of bf16, e4m3, e4m3_channel, "),
    ("generate {C} --target sm_80 -o out --rings 16", "--rings: must be 0: no layer of this model has a window sh"),
    ("export {C} --weights q8_0 --target sm_80 -o out --rings 16", "--rings: must be 0: no layer of this model has"),
    ("export --config windows.json --target sm_80 -o out --rings 16",
     "--rings: must be 0: with windows of 48 positions they would be no smaller than the cache of 64 (got 16)"),
    ("generate --config= --target sm_80 -o out", "--config: must be a path (got '')"),
    ("generate {C} --target sm_80 -o -", "-o: is needed with --config: the directory to write to"),
    ("generate {C} --target sm_80 --kv-dtype= -o out", "--kv-dtype: must be one of f32, f16, bf16, e4m3, s8 (got )"),
    ("generate {C} --target sm_80 --batch 99999999999999999999999999 -o out",
     "Invalid value for '--batch': 99999999999999999999999999 is not in the range 1<=x<=65535"),
    ("verify /dev/null", "/dev/null: must be a file or a directory (got a device, a pipe or a socket)"),
    ("generate {C} --target sm_80 --max-len 1e3 -o out", "Invalid value for '--max-len': '1e3' is not a valid integer"),
    ("generate {C} --target sm_80 --target sm_200 -o out", "--target: must be one of sm_70, sm_72, sm_75"),
    ("export {C} --prefix a-b --target sm_80 -o out", "--prefix: must be letters, digits and _, a letter first (got"),
    ("export --model= --target sm_80 -o out", "--model: must be a path (got '')"),
    ("export --model config.json --target sm_80 -o out", "config.json: must be a .gguf file, a folder with config.js"),
    ("export --model m --target sm_80 --target sm_90 -o out", "export --model: needs one --target, and -o, a new"),
    ("doctor --model= --kv-dtype f16", "--model: must be a path (got '')"),
    ("doctor --config=", "--config: must be a path (got '')"),
    ("doctor --model m --kv-dtype f8", "--kv-dtype: must be one of f32, f16, bf16, e4m3, s8 (got f8)"),
    ("complete kernel.ptx hello --kv-dtype f64", "--kv-dtype: must be one of f32, f16, bf16, e4m3, s8 (got f64)"),
    ("complete config.json hello", "config.json: must be a .gguf file, a folder with config.json and .safetensors fi"),
    ("requires ''", "FILE: must be a path (got '')"),
    ("verify kernel.ptx ''", "PATHS: must be a path (got '')"),
    ("check ''", "Invalid value for 'FILE': File '' does not exist."),
    ("golden check --root=", "--root: must be a path (got '')"),
    ("golden diff --root kernel.ptx", "--root: must be a directory of goldens (got kernel.ptx); golden update"),
    ("tune --config= --dry-run --target sm_90", "--config: must be a path (got '')"),
    ("replay config.json", "config.json: must be a launch recorded by ptxgen (File is not a zip file)"),
    ("run {A} --device cuda:x", '--device: must be cpu, cuda or cuda:N (got \'cuda:x\')'),
    ("run {A} --device cpu --size rows", "--size: must be NAME=N (got 'rows')"),
    ("run {A} --device cpu --inputs kernel.ptx", "kernel.ptx: must be an .npz of arrays without Python objects"),
    ("run {A} --device cpu --seconds 5", "--seconds: goes with --isolate"),
    ("run {A} --device cpu --isolate --seconds nan", "Invalid value for '--seconds': nan is no number."),
    ("check kernel.ptx --memory 5", "--memory: goes with --isolate"),
    ("check kernel.ptx --time-limit nan", "Invalid value for '--time-limit': nan is no number."),
    ("tune --heads 32/8/128 --gain nan --dry-run --target sm_90", "Invalid value for '--gain': nan is no number."),
    ("tune --heads 3/2/128 --dry-run --target sm_90", "IncrementalAttention.n_heads: must be a multiple of n_kv_heads"),
    ("tune --product 10x10/q4_k --dry-run --target sm_90", "--product 10x10/q4_k: k: must be a multiple of 256 from"),
]  # fmt: skip
SHORT = {"A": "activation --dim 64", "C": "--config config.json"}


def refused(command: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that begins so, exit 2, and the files as they were."""
    before = sorted(folder.rglob("*"))
    assert invoke(shlex.split(command.format(**SHORT))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"ptxgen: {said}")
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    windows = {"model_type": "mistral", "sliding_window": 48}
    (tmp_path / "windows.json").write_text(json.dumps(SMALL | windows))
    (tmp_path / "kernel.ptx").write_text(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry a() .reqntid 32 { ret; }\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("changed", "said"), WRONG, ids=[json.dumps(changed)[:40] for changed, _ in WRONG])
def test_a_wrong_value(changed: dict[str, Any], said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.json").write_text(json.dumps(SMALL | changed))
    refused("generate {C} --target sm_80 -o out", f"config.json: {said}", folder, capsys)


@pytest.mark.parametrize(("content", "said"), FILES, ids=[said for _, said in FILES])
def test_a_file_that_is_no_configuration(
    content: bytes, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_bytes(content)
    refused("export {C} --target sm_80 -o out", f"config.json: {said}", folder, capsys)


@pytest.mark.parametrize(("command", "said"), OPTIONS, ids=[command for command, _ in OPTIONS])
def test_an_option_in_the_wrong_place(
    command: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(command, said, folder, capsys)


def test_a_cache_that_cannot_be_is_one_sentence_and_no_error(folder: Path) -> None:
    """In a process of its own, as a cache is opened once."""
    place = folder / "config.json" / "cache"
    command = [sys.executable, "-m", "ptxgen", "run", *SHORT["A"].split(), "--device", "cpu"]
    shown = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PTXGEN_CACHE_DIR": str(place)})
    assert shown.returncode == 0
    assert shown.stderr.startswith(f"ptxgen: warning: cache directory {place}/cpu: Not a directory; entries stay in ")
    assert shown.stderr.count("\n") == 1
