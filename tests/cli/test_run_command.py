"""`ptxgen run` and `ptxgen record` run what they were told, or say in one sentence what is legal."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ptxgen.cli._main import invoke
from ptxgen.kernel import KernelType
from ptxgen.kernels import IncrementalAttention, KvCacheScatter, RmsNorm
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.trial import trial
from ptxgen.spec.examples import ranges
from tests.support.draws import small
from tests.support.kernels import TYPES

CPU = ["--device", "cpu", "--mode", "fast"]
ATTEND = ["incremental-attention", "--max-len", "100", "--head-dim", "64", "--n-heads", "4", "--n-kv-heads", "1"]
SPEC = IncrementalAttention(max_len=100, head_dim=64, n_heads=4, n_kv_heads=1)


def spec_of(name: str, **fields: object) -> KernelType:
    return small(TYPES[name], **fields)


def options(spec: KernelType) -> list[str]:
    words = [spec.kernel_name.replace("_", "-")]
    for field in dataclasses.fields(spec):
        value, flag = getattr(spec, field.name), field.name.replace("_", "-")
        if value != field.default:
            words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What one sentence on stderr says."""
    assert invoke(["run", *words, *CPU]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    return err


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [-1, 101, 5000, -(10**9)])
def test_a_length_that_the_kernel_would_clamp_is_refused(length: int, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, *ATTEND, "--seq-len", str(length))
    assert f"IncrementalAttention.seq_len: must be from 0 to 100 (got {length})" in said


@pytest.mark.parametrize("length", [0, 1, 100])
def test_the_ends_of_a_range_run(length: int) -> None:
    assert invoke(["run", *ATTEND, "--seq-len", str(length), *CPU]) == 0


LENGTHS = [
    (name, size)
    for name, cls in TYPES.items()
    for size, (least, _) in ranges(small(cls), {}).items()
    if size in cls.sizes and least == 0
]


@pytest.mark.parametrize(("name", "size"), LENGTHS)
def test_every_length_and_position_has_a_range(name: str, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = spec_of(name)
    _, most = ranges(spec, {})[size]
    for outside in (-1, most + 1):
        said = refused(capsys, *options(spec), "--size", f"{size}={outside}")
        assert f".{size}: must be from 0 to {most} (got {outside})" in said
    trial(spec, open_device("cpu"), repeat=False, **{size: most}).require()


def test_every_size_has_a_range() -> None:
    for name in TYPES:
        assert spec_of(name).sizes.keys() <= ranges(spec_of(name), {}).keys()


def test_rows_behind_a_position_stay_in_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    scatter = options(spec_of("kv_cache_scatter", max_len=48))
    assert "position: must be from 0 to 45 (got 46)" in refused(capsys, *scatter, "--size", "position=46",
                                                                "--size", "rows=3")  # fmt: skip
    assert "rows: must be from 1 to 48 (got 49)" in refused(capsys, *scatter, "--size", "rows=49")
    assert "batch: must be from 1" in refused(capsys, *ATTEND, "--batched", "--size", "batch=0")


@pytest.mark.parametrize("words", [["seq_len=--5"], ["seq_len"], ["seq_len=4", "seq_len=5"], ["seqlen=4"]])
def test_sizes_that_make_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, *ATTEND, *(f"--size={word}" for word in words))


def test_record_refuses_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.npz"
    assert invoke(["record", *ATTEND, "--seq-len", "101", "--device", "cpu", "-o", str(file)]) == 2
    assert "must be from 0 to 100 (got 101)" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("mode", ["random", "check"])
def test_a_seed_below_zero_is_refused(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "x.npz")
    given = ["--device", "cpu", "--mode", mode, "--seed", "-1"]
    assert invoke(["record", *ATTEND, "--device", "cpu", "-o", file]) == 0
    capsys.readouterr()
    for words in (["run", *ATTEND, *given], ["record", *ATTEND, *given, "-o", file], ["replay", file, *given]):
        assert invoke(words) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", "ptxgen: Invalid value for '--seed': -1 is not in the range x>=0.\n")


# -- outputs -----------------------------------------------------------------------------------------------------------

WRITERS = {"run": "--output", "record": "-o"}


def written(command: str, file: Path) -> int:
    return invoke([command, *ATTEND, *CPU, WRITERS[command], str(file)])


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("name", ["plain", "a.npz", "made/for/it.dat"])
def test_the_name_given_is_the_name_written(command: str, name: str, tmp_path: Path) -> None:
    assert written(command, tmp_path / name) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / name]
    np.load(files[0])


@pytest.mark.parametrize("command", WRITERS)
def test_what_cannot_be_written_is_refused_before_the_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"ptxgen.cli.{command}.open_for", lambda *_: pytest.fail("the device was opened"))
    (tmp_path / "file").write_text("")
    assert written(command, tmp_path / "file" / "x.npz") == 2
    assert capsys.readouterr().err == f"ptxgen: {tmp_path}/file/x.npz: Not a directory\n"
    assert written(command, tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("command", WRITERS)
def test_a_full_disk_leaves_what_was_there(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = tmp_path / "keep.npz"
    kept.write_text("before")
    monkeypatch.setattr("os.chmod", full)
    assert written(command, kept) == 2
    assert capsys.readouterr().err == f"ptxgen: {kept}: No space left on device\n"
    assert [(path, path.read_text()) for path in tmp_path.iterdir()] == [(kept, "before")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the platform has no device that is always full")
def test_a_full_device_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert written("run", Path("/dev/full")) == 2
    assert capsys.readouterr().err == "ptxgen: /dev/full: No space left on device\n"


# -- inputs ------------------------------------------------------------------------------------------------------------


WRONG = {
    "a shape": ({"q": np.zeros((3, 3), np.float32)}, "q: must be float32 [4, 64] (got float32 [3, 3])"),
    "as many elements": ({"q": np.zeros((2, 128), np.float32)}, "q: must be float32 [4, 64] (got float32 [2, 128])"),
    "a type": ({"q": np.zeros((4, 64))}, "q: must be float32 [4, 64] (got float64 [4, 64])"),
    "an array for a scalar": ({"seq_len": np.zeros(1, np.int32)}, "seq_len: must be one int32 (got int32 [1])"),
    "a fraction": ({"seq_len": np.array(2.5)}, "seq_len: must be one int32 (got one float64)"),
    "too long": ({"seq_len": np.array(101)}, "IncrementalAttention.seq_len: must be from 0 to 100 (got 101)"),
    "a name": ({"qq": np.zeros(3)}, "takes k_cache, out, q, seq_len, v_cache (got qq)"),
    "two": ({"q": np.zeros(3), "v_cache": np.zeros(4)}, "v_cache: must be float32 [1, 100, 64] (got float64 [4])"),
}


@pytest.mark.parametrize("case", WRONG)
def test_inputs_that_do_not_fit(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, says = WRONG[case]
    np.savez(tmp_path / "in.npz", **arrays)
    assert says in refused(capsys, *ATTEND, "--inputs", str(tmp_path / "in.npz"))


def test_inputs_of_other_sizes_are_told_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["soft-cap", "--dim", "64", "--cap", "5", "--inputs", str(tmp_path / "in.npz")]
    for shape, ending in (((7, 64), "; nearest: --size rows=7)"), ((7, 65), ")"), ((7,), ")")):
        np.savez(tmp_path / "in.npz", x=np.zeros(shape, np.float32))
        listed = ", ".join(map(str, shape))
        assert f"64] (got float32 [{listed}]{ending}" in refused(capsys, *words)
    np.savez(tmp_path / "in.npz", x=np.zeros((7, 64), np.float32))
    assert invoke(["run", *words, *CPU, "--size", "rows=7"]) == 0


def test_inputs_that_are_no_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, single, objects = tmp_path / "a.npz", tmp_path / "b.npy", tmp_path / "c.npz"
    text.write_text("no archive")
    np.save(single, np.zeros(3))
    np.savez(objects, q=np.array([{}], object))
    for path in (text, single, objects):
        assert "must be an .npz of arrays" in refused(capsys, *ATTEND, "--inputs", str(path))


def test_a_length_from_two_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "in.npz", seq_len=np.array(7))
    given = ["--inputs", str(tmp_path / "in.npz"), "--seq-len", "8"]
    assert "holds seq_len, which --size gives too" in refused(capsys, *ATTEND, *given)


def test_inputs_are_what_runs(tmp_path: Path) -> None:
    v = np.full((1, 100, 64), 2.5, np.float32)
    np.savez(tmp_path / "in.npz", v_cache=v, seq_len=np.array(7))
    words = ["--inputs", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out.npz")]
    assert invoke(["run", *ATTEND, *CPU, *words]) == 0
    assert np.load(tmp_path / "out.npz")["out"] == pytest.approx(2.5)


@pytest.mark.parametrize("name", ["incremental_attention", "multi_head_attention"])
def test_pages_that_are_read_must_exist(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = spec_of(name, max_len=48, batched=True, page_size=16)
    example = spec.example(np.random.default_rng(0))
    table, (_, last) = example["page_table"].copy(), ranges(spec, {})["page_table"]
    assert -1 <= table.min() < table.max() <= last
    table[0, 0] = last + 1
    np.savez(tmp_path / "in.npz", page_table=table)
    words = [*options(spec), "--inputs", str(tmp_path / "in.npz")]
    assert f".page_table: must be from -1 to {last} (got {last + 1})" in refused(capsys, *words)


@pytest.mark.parametrize("name", ["kv_cache_scatter", "rope_kv_append"])
def test_pages_that_are_written_may_be_said_not_to_exist(name: str, tmp_path: Path) -> None:
    spec = spec_of(name, batched=True, page_size=16)
    given = ["--inputs", str(tmp_path / "in.npz")]
    for n_pages in (0, 1):
        np.savez(tmp_path / "in.npz", n_pages=np.array(n_pages, np.int32))
        assert invoke(["run", *options(spec), *given, *CPU]) == 0


def test_infinities_are_compared_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    np.savez(tmp_path / "in.npz", q=np.full((4, 64), np.inf, np.float32))
    assert invoke(["run", *ATTEND, *CPU, "--inputs", str(tmp_path / "in.npz")]) == 0
    assert capsys.readouterr().err == ""
    assert not recwarn.list


def test_types_that_numpy_lacks_come_back_from_a_file(tmp_path: Path) -> None:
    spec = KvCacheScatter(max_len=8, head_dim=8, n_kv_heads=1, src_dtype="bf16", kv_dtype="e4m3")
    k = np.full((1, 1, 8), 3.0, ml_dtypes.bfloat16)
    np.savez(tmp_path / "in.npz", k=k)
    words = ["kv-cache-scatter", "--max-len", "8", "--head-dim", "8", "--n-kv-heads", "1", "--src-dtype", "bf16",
             "--kv-dtype", "e4m3", "--size", "position=5", "--inputs", str(tmp_path / "in.npz"),
             "--output", str(tmp_path / "out.npz")]  # fmt: skip
    assert invoke(["run", *words, *CPU]) == 0
    written = np.load(tmp_path / "out.npz")["k_cache"].view(spec.kv_dtype.numpy)[0, 5]
    assert (written.astype(np.float32) == 3.0).all()


def test_pointed_to_caches_are_one_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = spec_of("flash_decoding_chunk", max_len=48, n_kv_heads=1)
    caches = np.ones((2, 1, 48, 16), np.float16)
    np.savez(tmp_path / "in.npz", v_ptrs=caches)
    np.savez(tmp_path / "bad.npz", v_ptrs=caches[:1])
    assert invoke(["run", *options(spec), *CPU, "--inputs", str(tmp_path / "in.npz")]) == 0
    capsys.readouterr()
    said = refused(capsys, *options(spec), "--inputs", str(tmp_path / "bad.npz"))
    assert "v_ptrs: must be float16 [2, 1, 48, 16] (got float16 [1, 1, 48, 16])" in said


def test_sizes_that_no_memory_holds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*shape: object, **options: object) -> None:
        raise MemoryError("Unable to allocate 31 TiB")

    monkeypatch.setattr("ptxgen.runtime.tools.trial.trial", full)
    assert "not enough memory: Unable to allocate 31 TiB" in refused(capsys, *ATTEND)


@pytest.mark.parametrize(("limit", "value"), [("--seconds", "0.001"), ("--memory", "1")])
@pytest.mark.parametrize("command", ["run", "check"])
def test_what_a_limit_ended_names_its_option(
    command: str, limit: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "k.ptx"
    text.write_text(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n")
    words = ["run", "activation", "--dim", "64", *CPU] if command == "run" else ["check", str(text), "--block", "32"]
    assert invoke([*words, "--isolate", limit, value]) == 1
    assert f"({limit} allows more)" in capsys.readouterr().err


# -- findings ----------------------------------------------------------------------------------------------------------


def test_findings_are_printed_line_by_line_and_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RmsNorm, "early", ())  # as if its author had forgotten to wait before reading the weights
    words = ["run", "rms-norm", "--dim", "64", "--programmatic", "--device", "cpu", "--target", "sm_90"]
    assert invoke(words) == 1
    out, err = capsys.readouterr()
    first, second, *_ = err.splitlines()
    assert (out, first) == ("", "ptxgen: use of what the kernel before may still write in kernel rms_norm")
    assert "rms_norm" in second
    assert ";" not in first
    assert invoke([*words, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kernel"], shown["ok"]) == ("rms_norm", False)
    assert shown["findings"][0]["buffer"] == "weight_param"
