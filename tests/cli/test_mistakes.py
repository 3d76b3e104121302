"""Wrong use of every command: one sentence that names what is wrong, exit 2, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ptxgen.cli._main import invoke
from tests.cli.strangers_mistakes import STRANGERS

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry a(.param .u64 p) { ret; }
.visible .entry b() { ret; }
"""
SMALL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 32,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "intermediate_size": 64,
         "rms_norm_eps": 1e-5}  # fmt: skip
SHORT = {"A": "activation --dim 64", "I": "incremental-attention --max-len 64 --head-dim 16"}
MISTAKES = [
    ("generat activation", "generat: no such command; there are check, complete"),
    ("--nonesuch", "No such option '--nonesuch'."),
    ("generate nonesuch --target sm_80", "kernel type: must be one of activation, advance"),
    ("generate {A}", "--target: is needed, for example --target sm_90"),
    ("generate activation --target sm_80", "Activation.dim: is needed and has no default"),
    ("generate activation --dim x --target sm_80", "Activation.dim: must be an int (got 'x')"),
    ("generate activation --dim 0 --target sm_80", "Activation.dim: must be from 1 to 1048576 (got 0; nearest: 1)"),
    ("generate activation --dim -64 --target sm_80",
     "Activation.dim: must be from 1 to 1048576 (got -64; nearest: 1)"),
    ("generate activation --dim 64.5 --target sm_80", "Activation.dim: must be an int (got '64.5')"),
    ("generate {A} --kind nonesuch --target sm_80",
     "Activation.kind: must be one of silu, gelu, gelu_tanh, relu2 (got nonesuch)"),
    ("generate {A} --target sm_81", "--target: must be one of sm_70, sm_72, sm_75"),
    ("generate {A} --target sm_80x", "--target: must be one of sm_70, sm_72, sm_75"),
    ("generate {A} --target 8", "--target: must be one of sm_70, sm_72, sm_75"),
    ("generate {A} --target sm_80 --nonesuch 1", "No such option '--nonesuch'."),
    ("generate {A} extra --target sm_80", "Got unexpected extra argument (extra)"),
    ("generate {A} --target sm_80 -o file/below.ptx", "file/below.ptx: Not a directory"),
    ("generate {A} --target sm_80 --target sm_90 -o both.ptx",
     "-o: must be a directory when there is more than one target (got both.ptx)"),
    ("generate {A} --target sm_80 --manifest",
     "--manifest: needs -o with a directory or a file; stdout is for the PTX"),
    ("generate --config none.json --target sm_80 -o out", "none.json: model_type: must be one of llama"),
    ("generate --config list.json --target sm_80 -o out", "list.json: must be a JSON object (got list)"),
    ("generate --config bad.json --target sm_80 -o out", "bad.json: must be JSON (line 1, column 2"),
    ("generate --config nonesuch.json --target sm_80 -o out", "nonesuch.json: No such file or directory"),
    ("generate --config none.json", "-o: is needed with --config: the directory to write to"),
    ("run {A} --device gpu", "--device: must be cpu, cuda or cuda:N (got 'gpu')"),
    ("run {A} --device cpu:1", "--device: must be cpu, cuda or cuda:N (got 'cpu:1')"),
    ("run {A} --device cpu --mode slow",
     "Invalid value for '--mode': 'slow' is not one of 'fast', 'random', 'check'."),
    ("run {A} --device cpu --seed -1", "Invalid value for '--seed': -1 is not in the range x>=0."),
    ("run {A} --device cpu --size rows", "--size: must be NAME=N (got 'rows')"),
    ("run {A} --device cpu --size rows=x", "--size: must be NAME=N (got 'rows=x')"),
    ("run {A} --device cpu --size rows=0", "Activation.rows: must be from 1 to 2147483647 (got 0)"),
    ("run {A} --device cpu --size nonesuch=1", "Activation: sizes are rows (got nonesuch)"),
    ("run {A} --device cpu --size rows=1 --size rows=2", "--size: rows was given as 1 already (got 'rows=2')"),
    ("run {A} --device cpu --seq-len 1", "Activation: sizes are rows (got seq_len)"),
    ("run {A} --device cpu --inputs nonesuch.npz",
     "Invalid value for '--inputs': File 'nonesuch.npz' does not exist."),
    ("run {A} --device cpu --inputs array.npz",
     "array.npz: must be an .npz of arrays without Python objects (File is not a zip file)"),
    ("run {A} --device cpu --inputs y.npz", "y.npz: activation takes out, x (got y)"),
    ("run {A} --device cpu --inputs x.npz",
     "x.npz: x: must be float32 [2, 64] (got float64 [3, 64]; nearest: --size rows=3)"),
    ("run {A} --device cpu --output file/out.npz", "file/out.npz: Not a directory"),
    ("run {A} --device cpu --isolate --memory 0",
     "Invalid value for '--memory': 0 is not in the range 1<=x<=1048576."),
    ("run {A} --device cpu --isolate --seconds 0",
     "Invalid value for '--seconds': 0.0 is not in the range 0<x<=1000000.0."),
    ("run {A} --device cpu --target sm_81", "--target: must be one of sm_70, sm_72, sm_75"),
    ("run {I} --n-heads 2 --n-kv-heads 1 --device cpu --seq-len 65",
     "IncrementalAttention.seq_len: must be from 0 to 64 (got 65)"),
    ("run {I} --n-heads 2 --n-kv-heads 1 --device cpu --seq-len -1",
     "IncrementalAttention.seq_len: must be from 0 to 64 (got -1)"),
    ("run {I} --n-heads 3 --n-kv-heads 2 --device cpu",
     "IncrementalAttention.n_heads: must be a multiple of n_kv_heads (got n_heads=3, n_kv_head"),
    ("run kv-cache-scatter --max-len 64 --head-dim 64 --n-kv-heads 2 --device cpu --size position=64",
     "KvCacheScatter.position: must be from 0 to 63 (got 64)"),
    ("export {A}", "--target: is needed, for example --target sm_90"),
    ("export {A} --target sm_80 -o file/bundle", "file/bundle: Not a directory"),
    ("golden check --root nonesuch",
     "--root: must be a directory of goldens (got nonesuch); golden update --init makes one"),
    ("golden check --root file", "--root: must be a directory of goldens (got file); golden update --init makes one"),
    ("golden nonesuch", "No such command 'nonesuch'."),
    ("verify nonesuch.ptx", "nonesuch.ptx: no such file or directory"),
    ("verify empty", "empty: holds no .ptx file"),
    ("verify good.ptx --target sm_1", "--target: must be one of sm_70, sm_72, sm_75"),
    ("requires nonesuch.ptx", "nonesuch.ptx: No such file or directory"),
    ("requires text.ptx", "text.ptx:1: a module begins with .version and .target | no ptx"),
    ("requires good.ptx --driver x",
     "Invalid value for '--driver': must be a version such as 12.8: major.minor (got 'x')"),
    ("requires good.ptx --sm 9", "Invalid value for '--sm': must be a GPU's architecture, as sm_90 or 9.0 (got '9')"),
    ("requires good.ptx --driver 1.0", "driver: must be 9.0 or newer (got 1.0)"),
    ("replay nonesuch.npz", "Invalid value for 'FILE': File 'nonesuch.npz' does not exist."),
    ("replay array.npz", "array.npz: must be a launch recorded by ptxgen (File is not a zip file)"),
    ("check nonesuch.ptx", "Invalid value for 'FILE': File 'nonesuch.ptx' does not exist."),
    ("check text.ptx", "text.ptx:1: a module begins with .version and .target | no ptx"),
    ("check good.ptx", "good.ptx: has 2 entries (a, b); --entry names one"),
    ("check good.ptx --entry c", "good.ptx: has no entry 'c' (it has a, b)"),
    ("check good.ptx --entry a", "good.ptx: entry a has no .reqntid; --block says how many threads a CTA has"),
    ("check good.ptx --entry b --block 0",
     "--block: each of one to three values must be 1 … (1024, 1024, 64) (got (0,))"),
    ("check good.ptx --entry b --block 32x32x32x32",
     "Invalid value for '--block': must be N, NxN or NxNxN (got '32x32x32x32')"),
    ("check good.ptx --entry b --block 2048",
     "--block: each of one to three values must be 1 … (1024, 1024, 64) (got (2048,))"),
    ("check good.ptx --entry b --block 32 --grid 0",
     "--grid: each of one to three values must be 1 … (2147483647, 65535, 65535) (got ("),
    ("check good.ptx --entry b --block 32 --arg u32",
     "--arg: must be TYPE=NUMBER, TYPE[N], TYPE[NxM]=NUMBER, …=index or …=random (got 'u32'"),
    ("check good.ptx --entry a --block 32", "a: takes 1 argument (p) (got 0): --arg gives the next one"),
    ("check good.ptx --entry a --block 32 --arg nonesuch[4]",
     "--arg: the type must be one of f64, f32, f16, bf16, e4m3, e5m2, s8, u8, s16, u16, s32"),
    ("check good.ptx --entry a --block 32 --arg u32[4]=nonesuch",
     "--arg: must be TYPE=NUMBER, TYPE[N], TYPE[NxM]=NUMBER, …=index or …=random (got 'u32["),
    ("check good.ptx --entry a --block 32 --arg u32[0]",
     "--arg: a buffer must have 1 byte to 17,179,869,184 (got 'u32[0]')"),
    ("check good.ptx --entry b --block 32 --time-limit 0",
     "Invalid value for '--time-limit': 0.0 is not in the range x>0."),
    ("check good.ptx --entry b --block 32 --sarif file/x", "file/x: Not a directory"),
    ("check good.ptx --entry a --block 32 --args y.npz --arg u32[4]",
     "--args gives all arguments: no --arg beside it"),
    ("complete nonesuch.gguf hello", "Invalid value for 'MODEL': Path 'nonesuch.gguf' does not exist."),
    ("complete file hello", "file: must be a .gguf file, a folder with config.json and .safetensors files, or a llam"),
    ("completion nonesuch", "Invalid value for '{bash|zsh|fish}': 'nonesuch' is not one of 'bash', 'zsh', 'fish'."),
    ("tune nonesuch", "Got unexpected extra argument (nonesuch)"),
    ("doctor extra", "Got unexpected extra argument (extra)"),
    ("generate {A} --target sm_80 --entry 1bad", "--entry: must be letters, digits and _, a letter first (got '1bad')"),
    ("generate --config none.json --target sm_80 -o out --max-len 0",
     "Invalid value for '--max-len': 0 is not in the range x>=1."),
    ("generate --config small.json --target sm_80 -o out --page-size 7",
     "--page-size: must be a multiple of 16 from 16 to 65536 (got 7; nearest: 16)"),
    ("generate --config small.json --target sm_80 -o out --layout nhd", "--layout: goes with --page-size"),
    ("generate --config small.json --target sm_80 -o out --batch -1",
     "Invalid value for '--batch': -1 is not in the range 1<=x<=65535."),
    ("generate --config small.json --target sm_80 -o out --kv-dtype int3", "--kv-dtype: must be one of f32, f16, bf16"),
    ("generate --config small.json --target sm_80 -o out --weights q9", "--weights: must be one of bf16, e4m3, e4m3_"),
    ("generate --config small.json --target sm_80 -o file", "file/index.json: Not a directory"),
    ("generate --config empty --target sm_80 -o out", "empty/config.json: No such file or directory"),
    ("export --config small.json --target sm_80 -o out --prefix 9x",
     "--prefix: must be letters, digits and _, a letter first (got '9x')"),
    ("export --model file --config small.json --target sm_80 -o out",
     "export: --config does not go with --model (got small.json)"),
    ("export --model file --prefix x --target sm_80 -o out", "export: --prefix does not go with --model (got x)"),
    ("export --model file --target sm_80 -o out", "file: must be a .gguf file, a folder with config.json and .safete"),
    ("export --model file", "export --model: needs one --target, and -o, a new directory"),
    ("golden check --root empty",
     "--root: must be a directory of goldens (got empty); golden update --init makes one"),
    ("golden diff --root empty", "--root: must be a directory of goldens (got empty); golden update --init makes one"),
    ("golden update --root empty", "--root: must be a directory of goldens (got empty); golden update --init makes on"),
    ("doctor --config nonesuch", "nonesuch: must be a config.json or a folder with some (got none that names"),
    ("doctor --model file", "file: must be a .gguf file, a folder with config.json and .safetensors files, or a llam"),
    ("tune --product 3x", "--product: must be NxK/FORMAT, as 4096x14336/q4_k (got '3x')"),
    ("complete empty hello", "empty/config.json: cannot be read (No such file or directory)"),
    ("completion", "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"),
    ("list nonesuch", "kernel type: must be one of activation, advance"),
    ("record", "ptxgen record: names no kernel"),
]  # fmt: skip
MORE_MISTAKES = [
    ("generate {A} --target", "Option '--target' requires an argument."),
    ("generate {A} --target sm_80,sm_90", "--target: must be one of sm_70, sm_72, sm_75, sm_80, sm_86, sm_87, sm_88, "),
    ("generate {A} --target sm_80 -o loop/x.ptx", "loop: File exists"),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --window -1 --target sm_90",
        "IncrementalAttention.window: must be from 0 to 64 (got -1; nearest: 0)",
    ),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --soft-cap nan --target sm_90",
        "IncrementalAttention.soft_cap: must be a positive number from 1e-18 to 1e+18, or 0 for none (got nan)",
    ),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --scale 0 --target sm_90",
        "IncrementalAttention.scale: must be a number of magnitude from 1e-18 to ",
    ),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --kv-dtype f8 --target sm_90",
        "IncrementalAttention.kv_dtype: must be one of f32, f16, bf16, e4m3, s8 (got f8)",
    ),
    (
        "generate {I} --n-heads 99999999999999999999 --n-kv-heads 2 --target sm_90",
        "IncrementalAttention.n_heads: must be from 1 to 4096 (got ",
    ),
    ("generate {I} --n-heads 4 --n-kv-heads 2 --batched maybe --target sm_90", "Got unexpected extra argument (maybe)"),
    (
        "generate rope --head-dim 64 --n-heads 2 --n-kv-heads 1 --theta -1 --target sm_80",
        "Rope.theta: must be from 1.0 to 1000000000000.0 (got -1.0; nearest: 1.0)",
    ),
    (
        "generate gemv --n 64 --k 100 --weights q4_k --target sm_80",
        "Gemv.k: must be a multiple of 256 from 256 to 131072 (got 100; nearest: 256)",
    ),
    (
        "generate packed-gemm --n 64 --k 256 --tokens 9 --target sm_90a",
        "PackedGemm.tokens: must be one of 8, 16, 32, 64, 96, 104, 112, 128, 144, ",
    ),
    (
        "generate packed-gemm --n 64 --k 256 --tokens 8 --target sm_90",
        "PackedGemm.target: must be sm_90a or later (got sm_90; nearest: sm_90a)",
    ),
    ("generate activation layer-norm --dim 64 --target sm_80", "Got unexpected extra argument (layer-norm)"),
    (
        "generate --config small.json {A} --target sm_80 -o o1",
        "generate: name a kernel type or give --config, not both",
    ),
    ("generate --config small.json --dim 64 --target sm_80 -o o1", "No such option '--dim'."),
    (
        "generate --config small.json --target sm_80 -o o1 --batch 1.5",
        "Invalid value for '--batch': '1.5' is not a valid integer.",
    ),
    (
        "generate --config small.json --target sm_80 -o o1 --max-len 99999999999",
        "--max-len: must be from 1 to 1073741824 (got 99999999999; nearest: 1073741824)",
    ),
    ("generate --config loop --target sm_80 -o o1", "loop: Too many levels of symbolic links"),
    (
        "generate --config utf16.json --target sm_80 -o o1",
        "utf16.json: must be a text file with JSON (got bytes that are not UTF-8)",
    ),
    (
        "generate --config deep.json --target sm_80 -o o1",
        "deep.json: must be JSON of a sane size (maximum recursion depth ",
    ),
    ("run {A} --device cpu --size rows=-5", "Activation.rows: must be from 1 to 2147483647 (got -5)"),
    ("run {A} --device cpu --size =5", "Activation: sizes are rows (got )"),
    ("run {A} --device cpu --size rows=99999999999", "Activation.rows: must be from 1 to 2147483647 (got 99999999999)"),
    ("run {A} --device cpu --inputs nanx.npz", "nanx.npz: x: must be float32 [2, 64] (got complex64 [2, 64])"),
    ("run {A} --device cuda:-1", "--device: must be cpu, cuda or cuda:N (got 'cuda:-1')"),
    ("export --config small.json --target sm_80 -o small.json", "small.json/manifest.json: Not a directory"),
    ("export --target sm_80 -o o2", "export: name a kernel type (see `ptxgen list`), or give --config or --model"),
    ("golden update --init --root file", "--root: must be a directory, or a new one's name (got file)"),
    ("golden update --init --root file/x", "--root: must be a directory, or a new one's name (got file/x)"),
    ("verify good.ptx nonesuch.ptx", "nonesuch.ptx: no such file or directory"),
    ("requires latin.ptx", "latin.ptx:1: a module begins with .version and .target"),
    ("requires unterminated.ptx", "kernel b, unterminated.ptx:5: { without } | .visible .entry b() { ret;"),
    (
        "requires good.ptx --driver 12",
        "Invalid value for '--driver': must be a version such as 12.8: major.minor (got '12')",
    ),
    ("requires empty", "empty: Is a directory"),
    ("check empty.ptx --block 32", "empty.ptx:1: a module begins with .version and .target"),
    (
        "check good.ptx --entry b --block 32 --grid 70000x70000",
        "--grid: each of one to three values must be 1 … (2147483647, 65535, 65535) (got (70000, 70000))",
    ),
    ("check good.ptx --entry b --block 32 --arg u32=5", "b: takes 0 arguments (none) (got 1)"),
    (
        "check good.ptx --entry a --block 32 --arg u64=99999999999999999999999",
        "--arg: uint64 has no value 99999999999999999999999",
    ),
    (
        "check good.ptx --entry a --block 32 --arg f32[1e3]",
        "--arg: must be TYPE=NUMBER, TYPE[N], TYPE[NxM]=NUMBER, …=index or …=random (got 'f32[1e3]')",
    ),
    ("check good.ptx --entry a --block 32 --arg u8=256", "--arg: uint8 has no value 256"),
    (
        "check good.ptx --entry b --block 32 --shared 99999999",
        "--shared: must be 0 … 232448 bytes (227 KiB) as an int (got 99999999)",
    ),
    (
        "check good.ptx --entry b --block 32 --cluster 3 --grid 4",
        "--grid: must be a multiple of the cluster (3, 1, 1) (got (4, 1, 1))",
    ),
    ("check good.ptx --entry b --block 32 --time-limit nan", "Invalid value for '--time-limit': nan is no number."),
    ("replay x.npz", "x.npz: must be a launch recorded by ptxgen (got arrays ['x'])"),
    (
        "complete small.json hello",
        "small.json: must be a .gguf file, a folder with config.json and .safetensors files, or a llama2.c",
    ),
    (
        "complete file hello --temperature nan",
        "--temperature: must be from 0.0 to 1000000.0 (got nan)",
    ),
    ("complete file hello --top-p 2", "--top-p: must be from 0.0 to 1.0 (got 2.0; nearest: 1.0)"),
    (
        "complete file hello --precision slow",
        "Invalid value for '--precision': 'slow' is not one of 'exact', 'fast', 'e4m3'.",
    ),
    (
        "tune --product 4096x14336/q9",
        "--product 4096x14336/q9: weights: must be one of bf16, e4m3, e4m3_channel, e4m3_b",
    ),
    ("doctor --config small.json --model file", "doctor: --model or --config, not both"),
    ("completion BASH", "Invalid value for '{bash|zsh|fish}': 'BASH' is not one of 'bash', 'zsh', 'fish'."),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files to make mistakes with."""
    made = tmp_path_factory.mktemp("mistakes")
    (made / "empty").mkdir()
    for name, text in {"text.ptx": "no ptx\n", "good.ptx": PTX, "list.json": "[]", "bad.json": "{", "array.npz": "x",
                       "file": "x", "none.json": '{"model_type": "nonesuch"}',
                       "small.json": json.dumps(SMALL)}.items():  # fmt: skip
        (made / name).write_text(text)
    for name, content in {"utf16.json": json.dumps(SMALL).encode("utf-16"), "latin.ptx": b"\xff\xfe .version",
                          "deep.json": b"[" * 200_000 + b"]" * 200_000, "empty.ptx": b"",
                          "unterminated.ptx": PTX.rstrip().rstrip("}").encode()}.items():  # fmt: skip
        (made / name).write_bytes(content)
    (made / "loop").symlink_to("loop")
    np.savez(made / "nanx.npz", x=np.zeros((2, 64), np.complex64))
    np.savez(made / "y.npz", y=np.zeros(3))
    np.savez(made / "x.npz", x=np.zeros((3, 64)))
    return made


@pytest.mark.parametrize(("command", "said"), MISTAKES + MORE_MISTAKES + STRANGERS)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    command: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    assert invoke(command.format(**SHORT).split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ptxgen: " + said)
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


OBEYED = "x\x1b[2Jz"
PRINTED = "x\\x1b[2Jz"
PRINTING = {  # what prints the name of a file or a line of it, and where
    "requires {clear}": 2,
    "requires {good}": 0,
    "requires {good} --json": 0,
    "generate activation --dim 64 --target sm_80 -o {new}/": 0,
    "verify {clear}": 1,
    "golden update --init activation --target sm_80 --root {new}": 0,
    "golden check activation --root {new}": 2,
    "record activation --dim 64 --device cpu -o {new}": 0,
}


@pytest.mark.parametrize("command", PRINTING)
def test_what_a_terminal_would_obey_is_not_printed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    clear, good = tmp_path / f"clear-{OBEYED}.ptx", tmp_path / f"{OBEYED}.ptx"
    clear.write_text(f"{OBEYED} no ptx\n")
    good.write_text(PTX.replace(".address_size 64", f".address_size 64 // {OBEYED}"))
    words = [word.format(clear=clear, good=good, new=tmp_path / OBEYED) for word in command.split()]
    assert invoke(words) == PRINTING[command]
    printed = "".join(capsys.readouterr())
    assert PRINTED in printed.replace("\\u001b", "\\x1b")
    assert "\x1b" not in printed
