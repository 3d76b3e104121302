"""A decode step with our operators inside `torch.compile(fullgraph=True)`: append, attention over the cache.

python examples/torch/decode.py          on the GPU where torch sees one, else on the CPU executor
"""

from __future__ import annotations

try:
    import torch

    from ptxgen.torch import decode_attention, kv_append
except ModuleNotFoundError as missing:
    raise SystemExit(f"this example needs torch: {missing}") from None

BATCH, N_HEADS, N_KV_HEADS, HEAD_DIM, MAX_LEN, TOKENS = 2, 8, 2, 64, 64, 8


def step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """One position of every sequence."""
    kv_append(k, v, k_cache, v_cache, positions)
    return decode_attention(q, k_cache, v_cache, positions + 1)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # On the CPU the graph is captured, and runs as it is: inductor would need a C++ compiler.
    compiled = torch.compile(step, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    generator = torch.Generator().manual_seed(0)
    caches = [torch.zeros(BATCH, N_KV_HEADS, MAX_LEN, HEAD_DIM, device=device) for _ in range(2)]
    error = 0.0
    for at in range(TOKENS):
        q = torch.randn(BATCH, N_HEADS, HEAD_DIM, generator=generator).to(device)
        k, v = (torch.randn(BATCH, N_KV_HEADS, HEAD_DIM, generator=generator).to(device) for _ in range(2))
        out = compiled(q, k, v, *caches, torch.full((BATCH,), at, dtype=torch.int32, device=device))
        seen = [cache[:, :, : at + 1] for cache in caches]
        want = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], *seen, enable_gqa=True)[:, :, 0]
        error = max(error, (out - want).abs().max().item())
    print(f"{TOKENS} tokens of {BATCH} sequences on {device}, largest difference from torch {error:.1e}")
    if error > 1e-4:
        raise SystemExit("not what torch computes")


if __name__ == "__main__":
    main()
