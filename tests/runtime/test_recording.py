"""A launch recorded on one device replays on another: same text, same arguments, same memory."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from ptxgen.cli._main import invoke as run
from ptxgen.errors import SpecError
from ptxgen.files.archive import read_arrays, write_arrays
from ptxgen.kernels import FlashDecodingChunk, KvCacheScatter
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.recording import Recording, record, replay
from ptxgen.runtime.tools.trial import bind_example

SCATTER = KvCacheScatter(max_len=16, head_dim=32, n_kv_heads=2, kv_dtype="s8")


def recorded(spec, target="sm_90"):
    kernel = open_device("cpu").load(spec, target)
    bound, _ = bind_example(kernel, spec.example(np.random.default_rng(1)), {})
    return record(kernel, bound)


def test_a_recording_replays_after_a_round_trip_through_its_file(tmp_path):
    path = recorded(SCATTER).save(tmp_path / "launch.npz")
    verdicts = replay(Recording.load(path), open_device("cpu", mode="check"))
    assert {v.name for v in verdicts} == {"k_cache", "v_cache", "k_scales", "v_scales"}
    assert all(v.ok for v in verdicts)


def test_addresses_inside_buffers_are_moved(tmp_path):
    recording = recorded(FlashDecodingChunk(max_len=32, head_dim=16, n_heads=2, n_kv_heads=1, max_chunks=2,
                                            q_dtype="f16", kv_dtype="f16"))  # fmt: skip
    assert any(m.points for m in recording.memory)
    assert all(v.ok for v in replay(recording, open_device("cpu", mode="check")))


def test_a_changed_input_is_noticed():
    recording = recorded(SCATTER)
    source = next(m for m in recording.memory if m.name == "k")
    source.before.view(np.float32)[:] = 3.0
    assert not all(v.ok for v in replay(recording, open_device("cpu")))


def test_a_file_that_is_no_recording_is_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(SpecError, match="must be a launch recorded"):
        Recording.load(path)


FIELDS = ("text", "entry", "grid", "block", "shared", "cluster", "arguments", "memory", "device", "limit",
          "kernel")  # fmt: skip
PARTS = ("pointer", "name", "dtype", "points", "shape")
WRONG: dict[str, Any] = {
    "text": 7, "entry": None, "grid": [1, 1], "block": [0, 1, 1], "shared": -1, "cluster": [1.5, 1, 1],
    "arguments": ["zz"], "memory": {}, "device": [], "limit": float("nan"), "pointer": "0", "name": 1, "dtype": "zz",
    "points": 1, "kernel": "digit_gemm", "shape": [-1],
}  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """(a recording's file, its arrays, its description)"""
    path = recorded(SCATTER).save(tmp_path_factory.mktemp("kept") / "launch.npz")
    arrays = read_arrays(path, "a recording")
    return path, arrays, json.loads(str(arrays["meta"]))


def refused(path, arrays, meta):
    """What is said of a recording with this description."""
    write_arrays(path, {**arrays, "meta": np.array(json.dumps(meta))})
    with pytest.raises(SpecError) as wrong:
        Recording.load(path)
    assert str(wrong.value).count(str(path)) == 1
    return str(wrong.value)


def test_every_field_is_held_against_its_rule():
    assert tuple(f.name for f in dataclasses.fields(Recording)) == FIELDS
    assert WRONG.keys() == {*FIELDS, *PARTS}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_is_missing_or_wrong_is_named(name, kept, tmp_path):
    _, arrays, meta = kept
    assert name in refused(tmp_path / "a.npz", arrays, {**meta, name: WRONG[name]})
    assert f"recording.{name}: must be" in refused(tmp_path / "a.npz", arrays, {k: meta[k] for k in meta if k != name})


@pytest.mark.parametrize("name", PARTS)
def test_so_is_one_of_an_allocation(name, kept, tmp_path):
    _, arrays, meta = kept
    first, *others = meta["memory"]
    for changed in ({**first, name: WRONG[name]}, {k: v for k, v in first.items() if k != name}):
        said = refused(tmp_path / "a.npz", arrays, {**meta, "memory": [changed, *others]})
        assert f"recording.memory[0].{name}: must be" in said


@pytest.mark.parametrize(("shape", "kind"), [(0, "u1"), (4, "u1"), (1024, "i1"), ((), "u1")])
def test_bytes_of_memory_are_as_many_as_there_were(shape, kind, kept, tmp_path):
    _, arrays, meta = kept
    assert "recording.memory[0]" in refused(tmp_path / "a.npz", {**arrays, "after_0": np.zeros(shape, kind)}, meta)
    held = {name: array for name, array in arrays.items() if name != "after_0"}
    assert "recording.memory[0].after: must be a row of bytes" in refused(tmp_path / "a.npz", held, meta)


def test_another_format_is_said_once(kept, tmp_path):
    _, arrays, meta = kept
    path = tmp_path / "a.npz"
    assert refused(path, arrays, {**meta, "format": 3}) == f"{path}: recording format must be 1 to 2 (got 3)"


def test_a_file_of_the_first_format_replays(kept, tmp_path):
    """It names no spec, and no shapes."""
    _, arrays, meta = kept
    memory = [{name: value for name, value in one.items() if name != "shape"} for one in meta["memory"]]
    old = {name: value for name, value in meta.items() if name != "kernel"} | {"format": 1, "memory": memory}
    write_arrays(tmp_path / "old.npz", {**arrays, "meta": np.array(json.dumps(old))})
    recording = Recording.load(tmp_path / "old.npz")
    assert recording.spec() is None
    assert all(v.ok for v in replay(recording, open_device("cpu")))


def test_a_damaged_byte_is_noticed_wherever_it_counts(kept, tmp_path):
    path, arrays, _ = kept
    good, damaged, noticed = path.read_bytes(), tmp_path / "damaged.npz", 0
    places = sorted({*range(0, len(good), 41), *range(good.index(b"PK\1\2"), len(good))})  # and all of the directory
    for place in places:
        damaged.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        try:
            read = read_arrays(damaged, "a recording")
        except SpecError as wrong:
            noticed += str(damaged) in str(wrong)
        else:  # a date, or another field that nobody reads
            assert read.keys() == arrays.keys()
            assert all(np.array_equal(read[name], array) for name, array in arrays.items())
    assert noticed > len(places) / 2


@pytest.mark.parametrize("command", [["replay"], ["run", "kv-cache-scatter", "--max-len", "16", "--head-dim", "16",
                                                  "--n-kv-heads", "2", "--device", "cpu", "--inputs"]])  # fmt: skip
@pytest.mark.parametrize("part", [0.0, 0.2, 0.5])
def test_a_damaged_file_costs_one_sentence(command, part, kept, tmp_path, capsys):
    good, damaged = kept[0].read_bytes(), tmp_path / "damaged.npz"
    place = int(part * len(good))
    for content in (good[:place], good[:place] + bytes(8) + good[place + 8 :]):
        damaged.write_bytes(content)
        assert run([*command, str(damaged)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"ptxgen: {damaged}: must be")
        assert said.count("\n") == 1


def test_the_commands(tmp_path, capsys):
    path = str(tmp_path / "launch.npz")
    fields = ["--max-len", "16", "--head-dim", "16", "--n-kv-heads", "2"]
    assert run(["record", "kv-cache-scatter", *fields, "--device", "cpu", "--size", "position=3", "-o", path]) == 0
    assert run(["replay", path]) == 0
    assert "k_cache" in capsys.readouterr().out


def test_run_compares_with_the_reference(tmp_path, capsys):
    fields = ["--max-len", "16", "--head-dim", "16", "--n-kv-heads", "2"]
    assert run(["run", "kv-cache-scatter", *fields, "--device", "cpu"]) == 0
    assert "ok" in capsys.readouterr().out
    np.savez(tmp_path / "in.npz", nothing=np.zeros(1))
    assert run(["run", "kv-cache-scatter", *fields, "--device", "cpu", "--inputs", str(tmp_path / "in.npz")]) == 2
    assert run(["run", "kv-cache-scatter", *fields, "--device", "cpu", "--size", "rowz=3"]) == 2
