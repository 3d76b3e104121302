"""GGUF files: every family and every covered type, as `gguf` itself writes them; what is not covered is named."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from ptxgen.errors import FileError, SpecError
from ptxgen.models.files import open_model
from ptxgen.models.files.gguf_header import read_gguf
from ptxgen.models.files.gguf_model import FORMATS
from ptxgen.models.files.modelfile import is_vector, unfused
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.spec import ModelSpec
from tests.support.models.model_files import (
    ARCHS,
    as_type,
    for_gguf,
    gguf_model,
    rewritten,
    write_checkpoint,
    write_gguf,
)

PROMPT = (1, 77, 5, 130, 42, 9, 63, 21, 21, 100, 8, 3)


def expected_weights(family: str, spec: ModelSpec, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights by our names, as the reader gives them."""
    held = {name: for_gguf(family, spec, name, values) for name, values in weights.items()}
    for layer in range(spec.shape.n_layers if spec.block.fused else 0):
        at, q, kv = f"layers.{layer}.", spec.q_width, spec.kv_width
        parts = np.split(held.pop(f"{at}qkv_proj"), [q, q + kv])
        held |= dict(zip((f"{at}q_proj", f"{at}k_proj", f"{at}v_proj"), parts, strict=True))
        halves = np.split(held.pop(f"{at}gate_up_proj"), 2)
        held |= dict(zip((f"{at}gate_proj", f"{at}up_proj"), halves, strict=True))
    return held


@pytest.mark.parametrize("family", ARCHS)
def test_a_family_is_read_as_its_config_says(family: str, tmp_path: Path) -> None:
    spec, weights, _ = gguf_model(family)
    model = open_model(write_gguf(tmp_path / "m.gguf", family))
    want = replace(
        unfused(spec),
        shape=replace(spec.shape, dtype="f32"),
        rope_style="norm" if family in ("llama", "smollm3") else "neox",
        norm_eps=float(np.float32(spec.norm_eps)),
    )
    assert model.spec == replace(want, block=replace(want.block, norm_offset=0.0))
    for name, values in expected_weights(family, spec, weights).items():
        assert np.array_equal(model.values(name), values), name
    assert model.tensors.keys() == model.spec.tensors().keys()


@pytest.mark.parametrize("family", ARCHS)
def test_its_tokens_are_those_of_the_weights_it_was_written_from(family: str, tmp_path: Path) -> None:
    spec, weights, _ = gguf_model(family)
    model = open_model(write_gguf(tmp_path / "m.gguf", family))
    found = ReferenceModel(model.spec, {name: model.values(name) for name in model.tensors})
    want = ReferenceModel(spec, weights)
    np.testing.assert_allclose(found.forward(PROMPT), want.forward(PROMPT), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_covered_type_has_ggufs_own_values(kind: str, tmp_path: Path) -> None:
    sizes = dict(hidden_size=256, intermediate_size=512, num_attention_heads=16, head_dim=16, vocab_size=67)
    path = tmp_path / "m.gguf"
    if kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        write_gguf(path, "qwen3", as_type(Type[kind]), **sizes)
    else:
        write_gguf(path, "qwen3", random_blocks(Type[kind]), **sizes)
    model = open_model(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, title in (("layers.2.k_proj", "blk.2.attn_k"), ("embed_tokens", "token_embd"), ("norm", "output_norm")):
        tensor = theirs[f"{title}.weight"]
        want = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(model.values(name), want.reshape(model.values(name).shape)), name
        assert model.tensors[name].format == ("f32" if is_vector(name) else FORMATS[kind])


def random_blocks(kind: Type):
    """Blocks of random bits with sane scales, of types that `gguf` cannot quantise to."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    scales = {Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (size - 2,)}[kind]

    def convert(name: str, values: np.ndarray):
        if values.ndim == 1:
            return values, None
        rng = np.random.default_rng(len(name))
        blocks = rng.integers(0, 256, (len(values), values.shape[1] // block, size), np.uint8)
        for at in scales:
            blocks[..., at : at + 2] = np.array([0.01], np.float16).view(np.uint8)
        return blocks.reshape(len(values), -1), kind

    return convert


def test_a_bias_of_the_logits_is_part_of_the_model(tmp_path: Path) -> None:
    plain = write_gguf(tmp_path / "m.gguf", "qwen2")
    model = open_model(gguf_with(plain, tmp_path / "n.gguf", "output.bias", np.arange(131, dtype=np.float32)))
    assert model.spec == replace(open_model(plain).spec, head_bias=True)
    assert np.array_equal(model.values("lm_head.bias"), np.arange(131))


def test_matrices_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    model = open_model(write_gguf(tmp_path / "m.gguf", "llama", as_type(Type.Q8_0)))
    for name in ("embed_tokens", "layers.1.up_proj"):
        base = model.read(name)["blocks"]
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        assert type(base).__name__ == "mmap"


def test_the_header_is_read_as_gguf_reads_it(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "gemma2", extra={"general.name": "a name", "some.number": 7})
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert dict(ours.fields) == fields
    assert [(t.name, t.nbytes, t.offset) for t in ours.tensors.values()] == [
        (t.name, t.n_bytes, t.data_offset) for t in theirs.tensors
    ]


def test_rope_frequencies_of_the_file_divide(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama")
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    assert open_model(path).spec.shape.kinds[0].rope.freq_factors == ()
    with_factors = gguf_with(path, tmp_path / "n.gguf", "rope_freqs.weight", factors)
    assert open_model(with_factors).spec.shape.kinds[0].rope.freq_factors == tuple(float(f) for f in factors)
    short = gguf_with(path, tmp_path / "o.gguf", "rope_freqs.weight", factors[:3])
    with pytest.raises(FileError, match=r"rope_freqs.weight: must have 8 values \(got 3\)"):
        open_model(short)


def gguf_with(source: Path, path: Path, name: str, values: np.ndarray, kind: Type | None = None) -> Path:
    """The same file with one more tensor, or with a tensor of that name replaced."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if tensor.name != name:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SCALED = {
    "linear": ("qwen2", {"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "yarn": (
        "qwen3", {"type": "yarn", "factor": 4.0, "original_context_length": 16},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    ),
    "yarn of other turns": (
        "qwen2",
        {"type": "yarn", "factor": 4.0, "original_context_length": 16, "yarn_beta_fast": 4.0, "yarn_beta_slow": 0.5},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0,
         "beta_slow": 0.5},
    ),
    "full layers alone": ("gemma3_text", {"type": "linear", "factor": 8.0}, {"rope_type": "linear", "factor": 8.0}),
}  # fmt: skip


@pytest.mark.parametrize("what", SCALED)
def test_scaled_rotation_is_the_configurations(what: str, tmp_path: Path) -> None:
    family, metadata, scaling = SCALED[what]
    arch = gguf.MODEL_ARCH_NAMES[ARCHS[family][0]]
    extra = {f"{arch}.rope.scaling.{key}": value for key, value in metadata.items()}
    found = open_model(write_gguf(tmp_path / "m.gguf", family, extra=extra)).spec.shape.kinds
    want = gguf_model(family, rope_scaling=scaling)[0].shape.kinds
    assert found == want
    assert found != gguf_model(family)[0].shape.kinds


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
@pytest.mark.parametrize("max_len", [16, 64])
def test_phi3s_long_and_short_factors_are_tensors(max_len: int, tmp_path: Path) -> None:
    factors = {"long": np.linspace(1, 5, 4, dtype=np.float32), "short": np.linspace(1, 2, 4, dtype=np.float32)}
    extra = {"phi3.rope.scaling.attn_factor": 1.25, "phi3.rope.scaling.original_context_length": 32}
    path = write_gguf(tmp_path / "0.gguf", "phi3", extra=extra, partial_rotary_factor=0.5)
    for number, (key, values) in enumerate(factors.items(), 1):
        path = gguf_with(path, tmp_path / f"{number}.gguf", f"rope_factors_{key}.weight", values)
    rope = open_model(path, max_len=max_len).spec.shape.kinds[0].rope
    assert rope.attention_factor == 1.25
    assert rope.freq_factors == tuple(float(value) for value in factors["long" if max_len > 32 else "short"])


REFUSED = {
    "a type": ("blk.1.ffn_up", (96, 36), Type.IQ4_NL, r"blk.1.ffn_up.weight: IQ4_NL is not covered; F32, F16"),
    "a shape": ("blk.1.ffn_up", (95, 64), None, r"blk.1.ffn_up.weight: must have shape \[96, 64\] \(got \[95, 64\]"),
    "another part": (
        "blk.0.ffn_gate_inp",
        (4, 64),
        None,
        r"holds blk.0.ffn_gate_inp.weight \(f32\), for which a llama",
    ),
    "a norm's shape": ("output_norm", (63,), None, r"output_norm.weight: must have shape \[64\] \(got \[63\]\)"),
    "a norm's type": ("output_norm", (68,), Type.Q8_0, r"output_norm.weight: a vector must be f32, f16 or bf16"),
    "a third dimension": ("blk.0.ffn_up", (2, 96, 64), None, r"blk.0.ffn_up.weight: must have at most 2 dimensions"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_covered_is_named(what: str, tmp_path: Path) -> None:
    name, shape, kind, text = REFUSED[what]
    write_gguf(tmp_path / "m.gguf", "llama", num_hidden_layers=2)
    dtype = np.float32 if kind is None else np.uint8
    path = gguf_with(tmp_path / "m.gguf", tmp_path / "n.gguf", f"{name}.weight", np.zeros(shape, dtype), kind)
    with pytest.raises(FileError, match=text):
        open_model(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama")
    rewritten(path, lambda data: data.replace(b"blk.2.ffn_down.weight", b"blk.7.ffn_down.weight"))
    with pytest.raises(FileError, match=r": lacks blk.2.ffn_down.weight, which this llama model needs"):
        open_model(path)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen2")
    rewritten(path, lambda data: data.replace(b"qwen2", b"mamba"))
    with pytest.raises(FileError, match=r"general.architecture: must be one of llama, .* \(got 'mamba'\)"):
        open_model(path)


def test_a_shorter_context_can_be_asked_for(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama")
    assert open_model(path, max_len=16).spec.shape.max_len == 16
    with pytest.raises(SpecError, match=r"max_len: must be an integer of at least 1 \(got 0\)"):
        open_model(path, max_len=0)


@pytest.mark.parametrize("name", ["gguf", "safetensors"])
def test_a_package_that_is_not_installed_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama") if name == "gguf" else write_checkpoint(tmp_path / "m", "llama")
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FileError, match=rf"needs the package {name}.*, which is not installed: pip install 'ptx"):
        open_model(path)
