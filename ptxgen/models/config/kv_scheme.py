"""How a model's own KV cache is quantised: `kv_cache_scheme` of a quantised model's `config.json`."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.errors import SpecError, brief
from ptxgen.files.jsonfields import Fields

_PER = {"tensor": "tensor", "attn_head": "head"}
_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")


@dataclass(frozen=True)
class KvScheme:
    """Elements of type `dtype` times a scale, of keys and of values one each: `per` "tensor" for a layer's whole cache,
    "head" for each of its KV heads. Files hold the scales as `k_scale` and `v_scale` of a layer's attention."""

    dtype: str
    per: str


def kv_scheme(read: Fields) -> KvScheme | None:
    """What `quantization_config` (once `compression_config`) says of the cache; None where it says nothing.

    compressed-tensors: `kv_cache_scheme` with `num_bits`, `type`, `strategy`, `dynamic`, `symmetric`; modelopt:
    `kv_cache_quant_algo`. Raises `SpecError` for what no cache here holds, and for other keys that begin with
    kv_cache.
    """
    name = "quantization_config" if read.table("quantization_config") else "compression_config"
    held = Fields(read.table(name), f"{read.source}: {name}")
    algorithm = held.values.get("kv_cache_quant_algo")
    if algorithm is not None:
        if algorithm != "FP8":
            raise held.error("kv_cache_quant_algo", "must be FP8 or null")
        return KvScheme("e4m3", "tensor")
    for key, value in held.values.items():
        if key.startswith("kv_cache") and key not in _KEYS and value is not None:
            raise held.error(key, f"must be null: a cache's scheme is read from {' or '.join(_KEYS)}")
    table = held.table("kv_cache_scheme")
    if not table:
        return None
    scheme = Fields(table, f"{held.source}: kv_cache_scheme")
    bits, kind = scheme.count("num_bits", 8), table.get("type", "float")
    if (bits, kind) != (8, "float"):
        raise SpecError(f"{scheme.source}: type: must be float of 8 bits (got {brief(kind)} of {bits})")
    if scheme.flag("dynamic"):
        raise scheme.error("dynamic", "must be false: scales here are those of the file")
    if table.get("symmetric", True) is not True:
        raise scheme.error("symmetric", "must be true: caches here have no zero points")
    per = table.get("strategy", "tensor")
    if not isinstance(per, str) or per not in _PER:
        raise scheme.error("strategy", f"must be one of {', '.join(_PER)}")
    return KvScheme("e4m3", _PER[per])
