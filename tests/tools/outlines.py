"""Outlines: skeletons with the names of their fragments in the fragments' places, for shapes whose text is too long to
be read as a golden. `python -m tests.tools.outlines` writes them anew, as `golden update` does goldens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.report.sentence import show_help
from ptxgen import tuning
from ptxgen.builder import Builder
from ptxgen.kernel import KernelType
from ptxgen.kernels import (
    FlashDecodingChunk,
    FlashDecodingReduce,
    Gemm,
    Gemv,
    IncrementalAttention,
    MultiHeadAttention,
    PackedGemm,
)
from ptxgen.render import render_entry
from ptxgen.targets import target
from ptxgen.tuning import Choice, ProductChoice

# of decode attention; whatever the shipped table says
CHOICE = Choice(warps=8, cluster=4, grid=128, in_flight=2, split_positions=2048)
FOLDER = Path(__file__).resolve().parents[1] / "data" / "outlines"


@dataclass(frozen=True)
class Outline:
    """The shape of a spec's kernel on a target."""

    name: str
    where: str
    spec: KernelType
    stages: int = 0
    mergers: int = 0
    product: ProductChoice | None = None

    @property
    def path(self) -> Path:
        """The file that keeps it."""
        return FOLDER / f"{self.name}.txt"

    def text(self) -> str:
        """The entry as it is rendered now, without its declarations."""
        to = target(self.where)
        choice = self.product or replace(CHOICE, stages=self.stages, mergers=self.mergers)
        with tuning.using(tuning.fixed(choice)):
            b = Builder(self.spec, to)
            self.spec.build(b)
            b.finish()
            for fragment in b.fragments.values():
                fragment.lines, fragment.sites = [f"    <{fragment.name}>"], [fragment.opened]
            entry, _ = render_entry(b, self.spec.kernel_name, self.spec.template(to), self.spec.launch(to))
        body = (line for line in entry.splitlines() if not line.startswith("    .reg "))
        return "\n".join([f"// {self.spec!r} for {to}", *body]) + "\n"


def outlines() -> tuple[Outline, ...]:
    """Every outline that is kept."""
    return (*of_products(), *of_prefill(), *of_decoding())


LLAMA = {"n_heads": 32, "n_kv_heads": 8}
ONE = {"n_heads": 1, "n_kv_heads": 1}
BF16 = {"q_dtype": "bf16", "kv_dtype": "bf16"}
F16 = {"q_dtype": "f16", "kv_dtype": "f16"}


def of_products() -> Iterator[Outline]:
    fast = {"weights": "bf16", "precision": "fast"}
    blocks = {"weights": "e4m3_block", "x_dtype": "e4m3", "precision": "fast", "out_dtype": "bf16"}
    gated = {"gated": True, "activation": "silu", "stream": True}
    crowded = {"bias": True, "activation": "gelu_tanh"}
    shared_out = {"tile_rows": 192, "out_dtype": "bf16", "stream": True}
    yield from (
        Outline(
            "product_shared_k", "sm_90", Gemv(40, 2304, "q4_k", residual=True), product=ProductChoice(4, 2, 6, 2, 1)
        ),
        Outline("product_chained", "sm_90", Gemv(16, 2560, "q4_k", norm="rms", programmatic=True)),
        Outline("product_gated", "sm_90", Gemm(n=16, k=256, weights="q4_k", activation="silu", gated=True)),
        Outline("packed_split", "sm_90a", PackedGemm(n=256, k=2048, tokens=256, **fast, split=2, programmatic=True)),
        Outline(
            "packed_slices",
            "sm_90a",
            PackedGemm(n=64, k=1280, tokens=96, **fast, tile_rows=64, split=1, slices=2, share=1),
        ),
        Outline(
            "packed_norm_split",
            "sm_90a",
            PackedGemm(n=64, k=1024, tokens=8, **fast, norm="rms", split=2, programmatic=True),
        ),
        Outline("packed_factors", "sm_90a", PackedGemm(n=256, k=2048, tokens=256, **blocks)),
        Outline("packed_factors_split", "sm_90a", PackedGemm(n=256, k=2048, tokens=128, split=2, **blocks)),
        Outline("packed_crowded", "sm_90a", PackedGemm(n=256, k=2048, tokens=256, **blocks, **crowded)),
        Outline(
            "packed_crowded_stream",
            "sm_90a",
            PackedGemm(n=256, k=512, weights="q4_k", tokens=64, precision="fast", **crowded, **shared_out),
        ),
        Outline(
            "packed_mates",
            "sm_90a",
            PackedGemm(n=256, k=512, weights="q4_k", x_dtype="f16", by_row=True, tokens=16, **gated, tile_rows=256),
        ),
    )


def of_prefill() -> Iterator[Outline]:
    yield from (
        Outline("prefill", "sm_80", MultiHeadAttention(head_dim=128, **LLAMA)),
        Outline("prefill_wgmma", "sm_90a", MultiHeadAttention(head_dim=128, **LLAMA, **BF16)),
        Outline("prefill_wgmma_registers", "sm_90a", MultiHeadAttention(head_dim=64, **LLAMA, **BF16)),
        Outline(
            "prefill_wgmma_ring",
            "sm_90a",
            MultiHeadAttention(head_dim=64, **LLAMA, **BF16, max_len=4096, window=1000, ring=1024),
        ),
        Outline(
            "prefill_wgmma_e4m3", "sm_90a", MultiHeadAttention(head_dim=128, **LLAMA, kv_dtype="e4m3", max_len=4096)
        ),
        Outline(
            "prefill_widened",
            "sm_90a",
            MultiHeadAttention(head_dim=128, **LLAMA, q_dtype="bf16", kv_dtype="e4m3", max_len=4096, widened=True),
        ),
        Outline(
            "prefill_wgmma_sums",
            "sm_90a",
            MultiHeadAttention(head_dim=128, **LLAMA, q_dtype="bf16", kv_dtype="e4m3", max_len=8192, fp8=True),
        ),
        Outline("prefill_wgmma_wide", "sm_90a", MultiHeadAttention(head_dim=192, **ONE, max_len=4096, batched=True)),
        Outline("prefill_q_in_shared", "sm_90", MultiHeadAttention(head_dim=128, **LLAMA, **BF16, max_len=4096)),
        Outline("prefill_converts", "sm_90", MultiHeadAttention(head_dim=512, **ONE, kv_dtype="e4m3", max_len=4096)),
        Outline("prefill_f32_wide", "sm_86", MultiHeadAttention(head_dim=512, **ONE, kv_dtype="f32")),
    )


def of_decoding() -> Iterator[Outline]:
    long, group = {"max_len": 131072}, {"n_heads": 8, "n_kv_heads": 1}
    staged, wide = long | F16 | {"head_dim": 80}, long | {"head_dim": 256, "n_heads": 64, "n_kv_heads": 1}
    yield from (
        Outline("decode", "sm_90", IncrementalAttention(**long, head_dim=64, **LLAMA, **F16)),
        Outline("decode_once", "sm_90", IncrementalAttention(max_len=512, head_dim=64, **LLAMA, **F16, indirect=True)),
        Outline(
            "decode_batched", "sm_90", IncrementalAttention(**long, head_dim=64, **LLAMA, **F16, batched=True), 0, 1
        ),
        Outline("decode_group", "sm_80", IncrementalAttention(**wide, **F16)),
        Outline("decode_staged", "sm_90", IncrementalAttention(**staged, **LLAMA, indirect=True), 2),
        Outline("decode_staged_late", "sm_90", IncrementalAttention(**staged, **ONE, programmatic=True), 2),
        Outline("decode_staged_group", "sm_90", IncrementalAttention(**wide, **F16), 2),
        Outline("decode_early_ticket", "sm_90", IncrementalAttention(**staged, **ONE, programmatic=True), 2, 1),
        Outline("decode_mergers", "sm_80", IncrementalAttention(**long, head_dim=64, **LLAMA, **F16), 0, 8),
        Outline("decode_f32", "sm_90", IncrementalAttention(**long, head_dim=64, **LLAMA, programmatic=True)),
        Outline("decode_f32_group", "sm_75", IncrementalAttention(**long, head_dim=512, n_heads=32, n_kv_heads=1)),
        Outline("decode_f16_group", "sm_75", IncrementalAttention(**long, head_dim=128, **group, **F16)),
        Outline("chunk", "sm_90", FlashDecodingChunk(**long, head_dim=128, **LLAMA, **F16, programmatic=True)),
        Outline("reduce_one", "sm_75", FlashDecodingReduce(head_dim=512, n_heads=1, max_chunks=1)),
    )


if __name__ == "__main__":
    show_help(__doc__)
    FOLDER.mkdir(exist_ok=True)
    for outline in outlines():
        outline.path.write_text(outline.text(), encoding="utf-8")
