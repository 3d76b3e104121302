"""Attention over JAX arrays on the GPU, without a copy: they come in by DLPack, and the result goes back so.

python examples/jax/decode.py
"""

from __future__ import annotations

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as missing:
    raise SystemExit(f"this example needs JAX: {missing}") from None
from ptxgen import CudaError
from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import open_device

N_HEADS, N_KV_HEADS, HEAD_DIM, MAX_LEN, LENGTH = 8, 2, 64, 64, 40


def main() -> None:
    try:
        device = open_device("cuda")
    except CudaError as missing:
        raise SystemExit(f"this example needs a GPU: {missing}") from None
    keys = jax.random.split(jax.random.key(0), 3)
    q = jax.random.normal(keys[0], (N_HEADS, HEAD_DIM))
    k_cache, v_cache = (jax.random.normal(key, (N_KV_HEADS, MAX_LEN, HEAD_DIM)) for key in keys[1:])
    jax.block_until_ready((q, k_cache, v_cache))  # JAX has streams of its own

    spec = IncrementalAttention(max_len=MAX_LEN, head_dim=HEAD_DIM, n_heads=N_HEADS, n_kv_heads=N_KV_HEADS)
    out = device.empty((N_HEADS, HEAD_DIM), "f32")
    given = {"q": device.wrap(q), "k_cache": device.wrap(k_cache), "v_cache": device.wrap(v_cache)}
    device.load(spec).bind(**given, out=out, seq_len=LENGTH).launch()
    device.synchronize()
    found = jax.dlpack.from_dlpack(out)

    k, v = (jnp.repeat(cache[:, :LENGTH], N_HEADS // N_KV_HEADS, axis=0) for cache in (k_cache, v_cache))
    scores = jnp.einsum("hd,hpd->hp", q, k) / HEAD_DIM**0.5
    weights = jnp.exp(scores - scores.max(1, keepdims=True))
    want = jnp.einsum("hp,hpd->hd", weights / weights.sum(1, keepdims=True), v)
    error = float(abs(found - want).max())
    print(f"{LENGTH} positions, largest difference from JAX {error:.1e}")
    if error > 1e-2:
        raise SystemExit("not what JAX computes")


if __name__ == "__main__":
    main()
