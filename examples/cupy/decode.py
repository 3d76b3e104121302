"""Attention over CuPy arrays on the GPU, without a copy: they come in as they are, and the result goes back.

python examples/cupy/decode.py
"""

from __future__ import annotations

try:
    import cupy
except ModuleNotFoundError as missing:
    raise SystemExit(f"this example needs CuPy: {missing}") from None
from ptxgen import CudaError
from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import open_device

N_HEADS, N_KV_HEADS, HEAD_DIM, MAX_LEN, LENGTH = 8, 2, 64, 64, 40


def main() -> None:
    try:
        device = open_device("cuda")
    except CudaError as missing:
        raise SystemExit(f"this example needs a GPU: {missing}") from None
    random = cupy.random.default_rng(0)
    q = random.standard_normal((N_HEADS, HEAD_DIM), cupy.float32)
    k_cache, v_cache = (random.standard_normal((N_KV_HEADS, MAX_LEN, HEAD_DIM), cupy.float32) for _ in range(2))
    cupy.cuda.get_current_stream().synchronize()

    spec = IncrementalAttention(max_len=MAX_LEN, head_dim=HEAD_DIM, n_heads=N_HEADS, n_kv_heads=N_KV_HEADS)
    out = device.empty((N_HEADS, HEAD_DIM), "f32")
    given = {"q": device.wrap(q), "k_cache": device.wrap(k_cache), "v_cache": device.wrap(v_cache)}
    device.load(spec).bind(**given, out=out, seq_len=LENGTH).launch()
    device.synchronize()
    found = cupy.from_dlpack(out)

    k, v = (cupy.repeat(cache[:, :LENGTH], N_HEADS // N_KV_HEADS, axis=0) for cache in (k_cache, v_cache))
    scores = cupy.einsum("hd,hpd->hp", q, k) / HEAD_DIM**0.5
    weights = cupy.exp(scores - scores.max(1, keepdims=True))
    want = cupy.einsum("hp,hpd->hd", weights / weights.sum(1, keepdims=True), v)
    error = float(abs(found - want).max())
    print(f"{LENGTH} positions, largest difference from CuPy {error:.1e}")
    if error > 1e-4:
        raise SystemExit("not what CuPy computes")


if __name__ == "__main__":
    main()
