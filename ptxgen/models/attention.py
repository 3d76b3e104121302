"""The attention of a layer as kernels: specs from what the model says of it, and small Programs of these alone.

Whoever launches attention outside of a whole step (`Executor`, KV caches, torch's operators) has it from here; whole
steps (`step/decode.py`) take their fields from here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ptxgen.dtypes import DType, u64
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.kernel import KernelType, find_kernel_type
from ptxgen.launch import Param, evaluate
from ptxgen.models.config.shape import LayerKind, ModelShape
from ptxgen.models.program import Op, Program, Ref, Tensor
from ptxgen.targets import Target


@dataclass(frozen=True, kw_only=True)
class Attention:
    """A layer's attention. `q_dtype` is the type of q, k, v and of what it gives, `kv_dtype` the cache's; `rope` None:
    queries and keys do not rotate. `precise`: they rotate as exactly as f32 is. `ring`: rows of its caches, where they
    are rings. `head_scales`: kernels take scales of e4m3 keys and values."""

    head_dim: int
    n_heads: int
    n_kv_heads: int
    max_len: int
    q_dtype: DType
    kv_dtype: DType
    scale: float | None = None
    soft_cap: float = 0.0
    window: int = 0
    ring: int = 0
    rope: RopeSettings | None = None
    style: str = "neox"
    precise: bool = False
    sinks: bool = False
    head_scales: bool = False

    @classmethod
    def of(cls, shape: ModelShape, kind: LayerKind, q_dtype: object, kv_dtype: object, **more: Any) -> Attention:
        """That of a model's layers of a kind."""
        return cls(
            head_dim=shape.head_dim, n_heads=shape.n_heads, n_kv_heads=shape.n_kv_heads, max_len=shape.max_len,
            q_dtype=to_dtype(q_dtype), kv_dtype=to_dtype(kv_dtype), scale=shape.scale, soft_cap=shape.soft_cap,
            window=kind.window, rope=kind.rope, sinks=shape.sinks, **{"style": shape.rope_style, **more},
        )  # fmt: skip

    def fields(self, kernel: str, **options: Any) -> dict[str, Any]:
        """A kernel type's fields: those of its own that this says, and the options."""
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        rope = dataclasses.asdict(self.rope) if self.rope else {}
        facts |= {"dtype": self.q_dtype, "src_dtype": self.q_dtype} | rope
        names = find_kernel_type(kernel).__dataclass_fields__  # type: ignore[attr-defined]
        return {name: facts[name] for name in names if name in facts} | options

    def spec(self, kernel: str, **options: Any) -> KernelType:
        """A kernel of this attention."""
        return find_kernel_type(kernel)(**self.fields(kernel, **options))

    @property
    def append(self) -> tuple[str, str]:
        """What appends, and its kernel type: with rotation where there is any."""
        return ("append", "kv_cache_scatter") if self.rope is None else ("rope_append", "rope_kv_append")

    def split(self, target: Target, max_chunks: int = 64, programmatic: bool = False) -> tuple[KernelType, KernelType]:
        """Attention in chunks that keep all of a target's multiprocessors busy, and their merge."""
        from ptxgen.kernels import FlashDecodingChunk, FlashDecodingReduce

        wanted = FlashDecodingChunk.that_fills(target, **self.fields("flash_decoding_chunk", max_chunks=max_chunks))
        chunks = wanted.chunks(batch=1)  # no room for more than are ever used
        merge = FlashDecodingReduce(
            head_dim=self.head_dim, n_heads=self.n_heads, max_chunks=chunks, q_dtype=self.q_dtype,
            sinks=self.sinks, programmatic=programmatic,
        )  # fmt: skip
        return dataclasses.replace(wanted, max_chunks=chunks), merge


def program_of(*ops: tuple[str, KernelType], sizes: Mapping[str, int] | None = None) -> Program:
    """A Program of a few ops, by role and spec, whose tensors have the names of their parameters: what one writes, a
    later one reads under the same name. Scalars are 0; the caller gives their values when it binds."""
    return _program_of(ops, tuple((sizes or {}).items()))


@lru_cache(maxsize=256)
def _program_of(ops: tuple[tuple[str, KernelType], ...], capacities: tuple[tuple[str, int], ...]) -> Program:
    sizes = dict(capacities)
    found: list[Op] = []
    uses: dict[str, list[Param]] = {}
    for role, spec in ops:
        params = spec.params()
        names = {p.name: f"{role}.{p.name}" if p.access == "workspace" else p.name for p in params}
        for param in params:
            if param.kind != "scalar":
                uses.setdefault(names[param.name], []).append(param)
        refs = {p.name: Ref(names[p.name]) for p in params if p.kind != "scalar"}
        values = dict.fromkeys((p.name for p in params if p.kind == "scalar"), 0)
        found.append(Op(spec, refs, sizes, values, role, params=params))
    return Program({name: _tensor(name, params, sizes) for name, params in uses.items()}, tuple(found))


def _tensor(name: str, uses: list[Param], sizes: Mapping[str, int]) -> Tensor:
    """A tensor of `program_of`, from the parameters that it is in turn."""
    first, written = uses[0], any(param.access != "in" for param in uses)
    shape = tuple(evaluate(extent, sizes) for extent in first.shape)
    kind = "output" if first.access == "out" else "state" if written else "input"
    if first.access == "workspace":
        kind = "state" if first.zeroed else "scratch"
    return Tensor(name, u64 if first.kind == "pointers" else first.dtype, shape, kind, zeroed=first.zeroed)
