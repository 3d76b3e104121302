"""Damaged and hostile model files: a clear error, no crash, no large allocation, whatever is in them."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import FileError, PtxgenError, SpecError
from ptxgen.models.files import open_model
from ptxgen.models.spec import model_spec
from ptxgen.models.text.json_file import _of_tokenizers
from ptxgen.models.text.json_file import text_of as json_text_of
from ptxgen.models.text.llama2c import text_of
from tests.support.models.families import CONFIGS
from tests.support.models.model_files import add_vocabulary, write_checkpoint, write_gguf
from tests.support.models.raw_files import MOST_BYTES, gguf_bytes, write_llama2c
from tests.support.models.raw_files import gguf_tensor as tensor
from tests.support.models.raw_files import gguf_text as text

SHIPPED = Path(__file__).parents[3] / "examples" / "models"
MUTATIONS = 300
HOSTILE = (0, 1, 0x7F, 0xFF, 1 << 15, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1)


def mutations(data: bytes, header: int, seed: int) -> Iterator[bytes]:
    """Copies of a file with flipped bits, other numbers and lengths, and pieces moved, in the first `header` bytes."""
    rng = np.random.default_rng(seed)
    for _ in range(MUTATIONS):
        copy = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(0, header - 8))
            match int(rng.integers(0, 5)):
                case 0:
                    copy[at] ^= 1 << int(rng.integers(0, 8))
                case 1:
                    copy[at : at + 8] = struct.pack("<Q", HOSTILE[int(rng.integers(0, len(HOSTILE)))])
                case 2:
                    copy[at : at + 4] = struct.pack("<I", HOSTILE[int(rng.integers(0, 8))])
                case 3:
                    del copy[int(rng.integers(0, len(copy))) :]
                    copy = copy.ljust(header, b"\0")
                case 4:
                    other, n = int(rng.integers(0, header - 40)), int(rng.integers(1, 32))
                    copy[at : at + n] = data[other : other + n]
        yield bytes(copy)


def opens_or_says_why(path: Path) -> bool:
    """Whether the file opens, with all that is in it; it may refuse with an error of ours. No second, little memory."""
    began = time.process_time()
    tracemalloc.start()
    try:
        model = open_model(path)
        for name in model.tensors:
            model.read(name)
        model.text()
    except PtxgenError:
        return False
    else:
        return True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES + 40 * path.stat().st_size
        assert time.process_time() - began < 1


def small_gguf(path: Path) -> bytes:
    import gguf

    original = gguf.GGUFWriter.write_header_to_file

    def with_vocabulary(writer: gguf.GGUFWriter, *arguments: object) -> None:
        if "tokenizer.ggml.model" not in writer.kv_data[0]:
            add_vocabulary(writer, {f"w{n}": -float(n) for n in range(41)})
        original(writer, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", with_vocabulary)
        sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, vocab_size=300)
        return write_gguf(path, "llama", head_dim=8, **sizes).read_bytes()


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
@pytest.mark.parametrize("seed", range(4))
def test_a_gguf_header_of_random_faults(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = small_gguf(path)
    assert opens_or_says_why(path)
    header = data.index(b"output_norm.weight") + 64
    refused = 0
    for copy in mutations(data, header, seed):
        path.write_bytes(copy)
        refused += not opens_or_says_why(path)
    assert refused > MUTATIONS // 3


@pytest.mark.parametrize("seed", range(2))
def test_a_safetensors_header_of_random_faults(seed: int, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "qwen2", num_hidden_layers=1)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    header = 8 + struct.unpack_from("<Q", data)[0]
    refused = 0
    for copy in mutations(data, header, seed):
        path.write_bytes(copy)
        began = time.process_time()
        tracemalloc.start()
        try:
            model = open_model(folder)
            for name in model.tensors:
                model.read(name)
        except PtxgenError:
            refused += 1
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES + 4 * len(copy)
        assert time.process_time() - began < 1
    assert refused > MUTATIONS // 3


def test_a_llama2c_header_of_random_faults(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    write_llama2c(path, 1, True)
    for copy in mutations(path.read_bytes(), 64, 0):
        path.write_bytes(copy)
        assert not opens_or_says_why(path)  # at the least, it has no tokenizer


ONE = text("t") + struct.pack("<I", 1)
HEADERS = {
    "empty": (b"", "is too short"),
    "another magic": (b"GGML" + bytes(40), "is no GGUF file"),
    "version 1": (gguf_bytes(1), r"version: must be 2 or 3 \(got 1\)"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"version: must be 2 or 3 \(got a big-endian file\)"),
    "a count of tensors": (gguf_bytes(tensors=1 << 60), r"'tensor count': 1152921504606846976 cannot be"),
    "a count of entries": (gguf_bytes(entries=(1 << 64) - 1), r"'metadata count': 18446744073709551615 cannot be"),
    "a key's length": (gguf_bytes(entries=1, rest=struct.pack("<Q", 1 << 62) + bytes(40)), r"length of a metadata key"),
    "an endless array": (
        gguf_bytes(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 4, 1 << 60)), r"'a': 1152921504606846976 can",
    ),
    "an array of strings": (
        gguf_bytes(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 8, 1 << 40)), r"'a': 1099511627776 cannot be",
    ),
    "an array of arrays": (
        gguf_bytes(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 9, 1)), r"in an array no array \(got 9\)",
    ),
    "a metadata type": (gguf_bytes(entries=1, rest=text("a") + struct.pack("<I", 99) + bytes(9)), r"\(got 99\)"),
    "a key twice": (
        gguf_bytes(entries=2, rest=2 * (text("a") + struct.pack("<IB", 0, 1))), r"'a': stands twice in the metadata",
    ),
    "no UTF-8": (gguf_bytes(entries=1, rest=struct.pack("<Q", 2) + b"\xff\xfe" + bytes(20)), "must be UTF-8"),
    "an alignment of 0": (
        gguf_bytes(entries=1, rest=text("general.alignment") + struct.pack("<II", 4, 0)), "must be a power of two",
    ),
    "ten dimensions": (gguf_bytes(tensors=1, rest=tensor("t", (1,) * 10)), r"'t': must have 1 to 4 dimensions"),
    "a dimension of 0": (gguf_bytes(tensors=1, rest=tensor("t", (0, 4))), r"'t': a dimension must be from 1"),
    "a product of dimensions": (
        gguf_bytes(tensors=1, rest=tensor("t", (1 << 40, 1 << 40, 1 << 40, 1 << 40))), r"'t': ends behind the end",
    ),
    "an offset behind the end": (gguf_bytes(tensors=1, rest=tensor("t", (4,), 0, 1 << 62)), "ends behind the end"),
    "an odd offset": (gguf_bytes(tensors=1, rest=tensor("t", (4,), 0, 3)), "must be a multiple of 32"),
    "a broken block": (gguf_bytes(tensors=1, rest=tensor("t", (33,), 8) + bytes(99)), "Q8_0 must be a multiple of 32"),
    "a name twice": (gguf_bytes(tensors=2, rest=2 * tensor("t", (1,)) + bytes(99)), r"'t': stands twice in the file"),
    "two tensors in one place": (
        gguf_bytes(tensors=2, rest=tensor("t", (16,)) + tensor("u", (16,), 0, 32) + bytes(199)), r"'u': lies over 't'",
    ),
    "no architecture": (gguf_bytes(), r"general.architecture: must be one of llama, .* \(it is absent\)"),
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_a_gguf_header_that_lies_is_named(what: str, tmp_path: Path) -> None:
    data, text = HEADERS[what]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(FileError, match=text):
        open_model(path)


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = small_gguf(path)
    for size in range(0, len(data) - 1, len(data) // 97):
        path.write_bytes(data[:size])
        with pytest.raises(FileError):
            open_model(path)


SHARDS = {
    "empty": b"",
    "a header longer than any": struct.pack("<Q", 1 << 60) + b"{}",
    "a header of 90 MB": struct.pack("<Q", 90 << 20) + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"{{{{",
    "an endless nest": struct.pack("<Q", 200_000) + b'{"a":' + b"[" * 199_995,
    "a list": struct.pack("<Q", 2) + b"[]",
}


@pytest.mark.parametrize("what", SHARDS)
def test_a_safetensors_file_that_lies_is_named(what: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    (tmp_path / "model.safetensors").write_bytes(SHARDS[what])
    with pytest.raises(FileError, match=r"model.safetensors: is no safetensors file"):
        open_model(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff\xfe\x00", b'{"model_type": "llama"}', b"[]", b"7"])
def test_a_config_that_lies_is_named(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(PtxgenError, match=r"config.json"):
        open_model(tmp_path)


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "phi3"])
def test_a_value_of_a_config_that_is_of_no_type_it_could_be(family: str) -> None:
    """Read, or refused as any other wrong value is."""
    more = ("hidden_act", "hidden_activation", "rope_parameters", "layer_types", "quantization_config", "torch_dtype")
    refused: set[str] = set()
    for key in (*CONFIGS[family], *more):
        values: tuple[object, ...] = (-1, 1e300, float("nan"), "x", [[1]], {"a": {}}, {"rope_type": [1]})
        for value in values:
            try:
                model_spec(CONFIGS[family] | {key: value})
            except SpecError as wrong:
                refused |= {key} if key in str(wrong) else set()
    assert refused >= {"hidden_size", "head_dim", "rope_parameters", "torch_dtype"}
    assert refused & {"hidden_act", "hidden_activation"}


def test_a_tokenizer_json_that_lies_is_named(tmp_path: Path) -> None:
    """An id for which there is no memory ends a process of `tokenizers`; what it panics with is an error as well."""
    path, good = tmp_path / "tokenizer.json", (SHIPPED / "tokenizer.json").read_text()
    far = json.loads(good)
    far["model"]["vocab"]["far"] = 4_000_000_000
    added = json.loads(good)
    added["added_tokens"][0]["id"] = 4_000_000_000
    for lie, said in (
        (json.dumps(far), r"an id must be from 0 to 1048576 in a file of \d+ bytes \(got 4000000000\)"),
        (json.dumps(added), "an id must be from 0 to"),
        (good[:-9], "is no tokenizer"),
        ("[" * 100_000, "is no tokenizer"),
        ("[]", "is no tokenizer"),
        ('{"model": {"vocab": [1]}, "added_tokens": {}}', "is no tokenizer"),
    ):
        path.write_text(lie)
        with pytest.raises(FileError, match=f"tokenizer.json: {said}"):
            json_text_of(tmp_path)
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(FileError, match=r"^[^:]*tokenizer.json: must be at most 64 MiB \(got 67108865 bytes\)"):
        json_text_of(tmp_path)
    absent = {"SpecialToken": {"id": "absent", "type_id": 0}}
    before = {"type": "TemplateProcessing", "single": [absent], "pair": [absent], "special_tokens": {}}
    for processor in (before, {"type": "Sequence", "processors": [before]}):
        path.write_text(json.dumps(json.loads(good) | {"post_processor": processor}))
        with pytest.raises(FileError, match=r"must define the special tokens that it puts \(got 'absent'\)"):
            json_text_of(tmp_path)


def test_a_panic_of_tokenizers_is_an_error_and_other_ends_are_not() -> None:
    """pyo3 raises it as no Exception; Ctrl-C is none either, and stays what it is."""
    panic = type("PanicException", (BaseException,), {})
    with (
        pytest.raises(FileError, match=r"^t: is no tokenizer \(no entry found for key\)$"),
        _of_tokenizers("t: is no tokenizer"),
    ):
        raise panic("no entry found for key\nand more")
    with pytest.raises(KeyboardInterrupt), _of_tokenizers("t"):
        raise KeyboardInterrupt


def test_a_llama2c_tokenizer_that_lies_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.bin"
    for data, reason in (
        (b"", r"ends within token 0 of 300"),
        (struct.pack("<ifi", 1, 0.0, -1), r"token 0: -1 bytes cannot be"),
        (struct.pack("<ifi", 1, 0.0, 1 << 30), r"token 0: 1073741824 bytes cannot be"),
    ):
        path.write_bytes(data)
        with pytest.raises(FileError, match=reason):
            text_of([path], 300)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"absent.gguf: cannot be read \(No such file"):
        open_model(tmp_path / "absent.gguf")


@pytest.mark.parametrize("path", [None, 3, b"m.gguf"])
def test_what_is_no_path_is_named(path: Any) -> None:
    with pytest.raises(SpecError, match=r"model: must be the path of a file or a folder \(got "):
        open_model(path)


@pytest.mark.parametrize("name", ["m.gguf", "m.bin", "m.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_what_never_ends_is_not_read(name: str, kind: str, tmp_path: Path) -> None:
    """A pipe that nobody writes to, and a link to endless zeros."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    reads = json_text_of if name == "tokenizer.json" else open_model
    with pytest.raises(FileError, match=rf"{name}: must be a regular file"):
        reads(tmp_path if name.endswith("json") else path)


def test_a_bias_of_gigabytes_is_not_looked_through(tmp_path: Path) -> None:
    """Zeros that no model has a use for; the file is sparse."""
    path = write_checkpoint(tmp_path, "llama", num_hidden_layers=1) / "model.safetensors"
    data, size = path.read_bytes(), 8 << 30
    length = struct.unpack_from("<Q", data)[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    at = [len(body), len(body) + size]
    header["model.layers.0.mlp.gate_proj.bias"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": at}
    said = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(said)) + said + body)
        file.truncate(8 + len(said) + len(body) + size)
    began = time.process_time()
    with pytest.raises(FileError, match=r"gate_proj.bias \(f32\), for which a llama model has no use"):
        open_model(tmp_path)
    assert time.process_time() - began < 1
