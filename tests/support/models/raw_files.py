"""Model files written byte by byte, with no library: GGUF headers, llama2.c checkpoints, packed codes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

MOST_BYTES = 4 << 20  # that opening may take, on top of what Python's own objects for so small a file take


def gguf_bytes(version: int = 3, tensors: int = 0, entries: int = 0, rest: bytes = b"") -> bytes:
    """A GGUF file of these numbers, and bytes behind its header."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def gguf_text(value: str) -> bytes:
    """A text as GGUF has it: its length, then its bytes."""
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """A tensor as a GGUF header has it: name, dimensions, type and offset."""
    return gguf_text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def packed_codes(codes: np.ndarray, axis: int, order: tuple[int, ...]) -> np.ndarray:
    """Eight codes along `axis` in an int32; nibble i holds code `order[i]`."""
    codes = np.moveaxis(codes, axis, -1)
    words = codes.reshape(*codes.shape[:-1], -1, 8).astype(np.uint32)
    out = np.zeros(words.shape[:-1], np.uint32)
    for nibble, place in enumerate(order):
        out |= words[..., place] << np.uint32(4 * nibble)
    return np.ascontiguousarray(np.moveaxis(out, -1, axis)).view(np.int32)


def write_llama2c(path: Path, version: int, tied: bool, n_layers: int = 2) -> dict[str, np.ndarray]:
    """A checkpoint of random weights: dim 32, hidden 48, 4 heads, 2 KV heads, vocabulary 259, 16 positions."""
    head = [32, 48, n_layers, 4, 2, 259, 16]
    shapes = {
        "input_layernorm": (32,), "post_attention_layernorm": (32,), "q_proj": (32, 32), "k_proj": (16, 32),
        "v_proj": (16, 32), "o_proj": (32, 32), "gate_proj": (48, 32), "down_proj": (32, 48), "up_proj": (48, 32),
    }  # fmt: skip
    rng = np.random.default_rng(version)
    weights = {
        f"layers.{n}.{name}": rng.standard_normal(shape).astype("<f4")
        for name, shape in shapes.items() for n in range(n_layers)
    }  # fmt: skip
    weights |= {"embed_tokens": rng.standard_normal((259, 32)).astype("<f4"), "norm": np.ones(32, "<f4")}
    if not tied:
        weights["lm_head"] = rng.standard_normal((259, 32)).astype("<f4")
    norms, rest = list(shapes)[:2], list(shapes)[2:]
    if version:
        order = [*norms, "norm", "embed_tokens", *rest[:4], "gate_proj", "down_proj", "up_proj"]
        header = np.array([0x616B3432, 1, *head], "<i4").tobytes() + bytes([tied])
        header = header.ljust(256, b"\0")
    else:
        order = ["embed_tokens", norms[0], *rest[:4], norms[1], "gate_proj", "down_proj", "up_proj", "norm", "rope"]
        header = np.array([*head[:5], 259 if tied else -259, 16], "<i4").tobytes()
    body = b""
    for name in (*order, *(() if tied else ("lm_head",))):
        if name == "rope":
            body += bytes(4 * 16 * 8)
        elif name in weights:
            body += weights[name].tobytes()
        else:
            body += b"".join(weights[f"layers.{n}.{name}"].tobytes() for n in range(n_layers))
    path.write_bytes(header + body)
    return weights
