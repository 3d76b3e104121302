"""Files that are larger than they should be: refused in little time and memory, or before anything is allocated."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from ptxgen.errors import CapacityError, FileError, PtxgenError
from ptxgen.models.files import open_model
from ptxgen.runtime import Model
from ptxgen.runtime.core.backend import MemoryUse
from ptxgen.runtime.cpu.device import CpuDevice
from tests.support.models.families import CONFIGS
from tests.support.models.model_files import write_gguf
from tests.support.models.raw_files import MOST_BYTES, gguf_bytes
from tests.support.models.raw_files import gguf_tensor as tensor
from tests.support.models.raw_files import gguf_text as text


def many_strings(n: int) -> bytes:
    return gguf_bytes(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 8, n) + bytes(8 * n))


def many_entries(n: int) -> bytes:
    entries = b"".join(text(f"k{i}") + struct.pack("<IB", 0, 1) for i in range(n))
    return gguf_bytes(entries=n, rest=entries)


def many_tensors(n: int) -> bytes:
    return gguf_bytes(tensors=n, rest=b"".join(tensor(f"k{i}", (1,), 0, 32 * i) for i in range(n)) + bytes(32 * n + 64))


def long_config(n: int) -> bytes:
    return json.dumps(CONFIGS["llama"] | {"unused": [0] * n}).encode()


def long_index(n: int) -> bytes:
    return json.dumps({"weight_map": {f"t{i}": f"s{i % 1000}.safetensors" for i in range(n)}}).encode()


def many_shards(n: int) -> bytes:
    return json.dumps({"weight_map": {f"t{i}": f"s{i}.safetensors" for i in range(n)}}).encode()


def long_header(n: int) -> bytes:
    header = {f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(n)}
    said = json.dumps(header).encode()
    return struct.pack("<Q", len(said)) + said + bytes(n)


# As large as is read, and larger: each takes time and memory in proportion, and then there is a limit.
LARGE = {
    "strings": ("m.gguf", many_strings, 1 << 20, r"general.architecture: must be one of"),
    "more strings": ("m.gguf", many_strings, 5_000_000, r"'a': must be at most 1048576 \(got 5000000\)"),
    "entries": ("m.gguf", many_entries, 1 << 14, r"general.architecture: must be one of"),
    "more entries": ("m.gguf", many_entries, 100_000, r"'metadata count': must be at most 16384 \(got 100000\)"),
    "tensors": ("m.gguf", many_tensors, 1 << 14, r"general.architecture: must be one of"),
    "more tensors": ("m.gguf", many_tensors, 100_000, r"'tensor count': must be at most 16384 \(got 100000\)"),
    "a configuration": ("config.json", long_config, 1_300_000, r"holds no .safetensors file"),
    "a longer one": ("config.json", long_config, 7_000_000, r"config.json: must be at most 4 MiB"),
    "an index": (
        "model.safetensors.index.json",
        long_index,
        120_000,
        r"names s0.safetensors, which is not in",
    ),
    "an index of many files": ("model.safetensors.index.json", many_shards, 100_000, r"must name at most 1024 files"),
    "a longer index": ("model.safetensors.index.json", long_index, 500_000, r"index.json: must be at most 4 MiB"),
    "a shard's header": ("model.safetensors", long_header, 50_000, r"t0 \(U8\): is not covered"),
    "a longer header": ("model.safetensors", long_header, 200_000, r"its header must be at most 4 MiB"),
}


@pytest.mark.parametrize("what", LARGE)
@pytest.mark.filterwarnings("ignore:.*unused. is not known")
def test_a_large_header_takes_less_than_a_second_and_little_memory(what: str, tmp_path: Path) -> None:
    name, make, n, text = LARGE[what]
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    (tmp_path / name).write_bytes(make(n))
    path = tmp_path / name if name.endswith(".gguf") else tmp_path
    began = time.process_time()
    with pytest.raises(FileError, match=text):
        open_model(path)
    assert time.process_time() - began < 1
    tracemalloc.start()
    with pytest.raises(FileError, match=text):
        open_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_BYTES + 40 * min((tmp_path / name).stat().st_size, 8 << 20)


def test_a_context_that_no_model_has_must_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = write_gguf(path, "llama", max_position_embeddings=12345).read_bytes()
    key = data.index(b"llama.context_length") + len(b"llama.context_length") + 4
    path.write_bytes(data[:key] + struct.pack("<I", 1 << 24) + data[key + 4 :])
    with pytest.raises(PtxgenError, match=r"llama.context_length: above 1048576 max_len must say how many"):
        open_model(path)
    assert open_model(path, 100).spec.shape.max_len == 100


def test_what_does_not_fit_the_device_is_refused_before_anything_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", max_position_embeddings=1 << 20)
    device, asked = CpuDevice(), []
    monkeypatch.setattr(device, "_allocate", lambda *given: asked.append(given))
    monkeypatch.setattr(device, "memory", lambda: MemoryUse(10 << 20, 1 << 30, 0, 0))
    began = time.process_time()
    with pytest.raises(
        CapacityError, match=r"Model: needs .* and cpu has 10,485,760 free; max_len=\d+ would fit"
    ) as said:
        Model.load(path, device)
    assert not asked
    assert time.process_time() - began < 1
    fitting = int(str(said.value).rpartition("max_len=")[2].split()[0])
    monkeypatch.undo()
    with monkeypatch.context() as tight:  # with more room attention would take scratch memory
        tight.setattr(device, "memory", lambda: MemoryUse(10 << 20, 1 << 30, 0, 0))
        taken = Model.load(path, device, max_len=fitting)
    assert 5 << 20 < device.memory().used <= 10 << 20
    assert taken.shape.max_len == fitting
    monkeypatch.setattr(device, "memory", lambda: MemoryUse(1000, 1 << 30, 0, 0))
    with pytest.raises(CapacityError, match=r"without a cache it does not fit"):
        Model.load(path, device)
