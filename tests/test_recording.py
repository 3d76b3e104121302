"""A launch recorded on one device replays on another: same text, same arguments, same memory."""

import numpy as np
import pytest

from ptxgen.cli._main import invoke as run
from ptxgen.errors import SpecError
from ptxgen.kernels import FlashDecodingChunk, KvCacheScatter
from ptxgen.runtime import open_device
from ptxgen.runtime.recording import Recording, record, replay
from ptxgen.runtime.trial import bind_example

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
