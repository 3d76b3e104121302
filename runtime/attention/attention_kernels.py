"""The small Programs of an `Executor`: attention of a layer, bound once and updated, or for one call. Owns no order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError
from ptxgen.kernels.multi_head_attention import MultiHeadAttention
from ptxgen.models.arena import plan_arena
from ptxgen.models.attention import Attention, program_of
from ptxgen.models.program import Program
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.step import Step, own_buffers
from ptxgen.runtime.kv.kvcache import KvCache

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType


_OPTIONS = ("scale", "soft_cap", "window")  # that all of these kernels have


class AttentionKernels:
    """Steps over the layers of a cache, with queries of `q_dtype`; `options` are those of `IncrementalAttention`.

    Scratch memory is shared by all layers: they run one after the other.
    """

    def __init__(self, cache: KvCache, q_dtype: DType, options: Mapping[str, Any]) -> None:
        if others := sorted(options.keys() - set(_OPTIONS)):
            want = f"of {', '.join(_OPTIONS)} (bind IncrementalAttention itself for other options)"
            raise SpecError(f"Executor.options: must be {want} (got {', '.join(others)})")
        self.device, self.cache = cache.device, cache
        self.attention = Attention(
            head_dim=cache.head_dim, n_heads=cache.n_heads, n_kv_heads=cache.n_kv_heads, max_len=cache.max_len,
            q_dtype=q_dtype, kv_dtype=cache.dtype, **options,
        )  # fmt: skip
        layers = range(cache.n_layers) if any(cache.rings.windows) else ()
        rings = cache.rings
        self._layers = {n: replace(self.attention, window=rings.windows[n], ring=rings.sizes[n]) for n in layers}
        self._steps: dict[int, Step] = {}
        self._arena: Buffer | None = None  # of chunks: 16-bit rows of a layer's cache of 8 bits, or parts of keys
        self._scratch: dict[tuple[KernelType, ...], dict[str, Buffer]] = {}
        for attention in {self.attention, *self._layers.values()}:
            attention.spec("incremental_attention")  # a value that an option does not take is an error

    def of(self, layer: int) -> Attention:
        """The attention of a layer: with its own window, where layers have their own."""
        return self._layers.get(layer, self.attention)

    def step(self, layer: int, q: Buffer, out: Buffer, length: int) -> Step:
        """One query of every head `[n_heads, head_dim]` over `length` positions of a layer; bound once and updated."""
        step = self._steps.get(layer)
        if step is not None:
            return step.update(q=q, out=out, seq_len=length)
        program = program_of(("attention", self.of(layer).spec("incremental_attention", indirect=False)))
        step = self._steps[layer] = self._bind(layer, program, q=q, out=out, seq_len=length)
        return step

    def recorded_step(self, layer: int, given: Mapping[str, Buffer], position: Buffer, length: Buffer) -> Step:
        """Append k, v and attend with q into out; position and length s32 `[1]` are read at every replay."""
        append, attend = (self.of(layer).spec(n, indirect=True) for n in ("kv_cache_scatter", "incremental_attention"))
        program = program_of(("append", append), ("attention", attend), sizes={"rows": 1})
        return self._bind(layer, program, **given, position=position, seq_len=length)

    def chunk(self, layer: int, q: Buffer, out: Buffer, length: int) -> Step:
        """The last queries `[rows, n_heads, head_dim]` of `length` positions of a layer, causally, in the way that is
        faster where the device has room for it: keys in parts, or those of 8 bits as 16-bit ones."""
        attend, rows = self.of(layer).spec("multi_head_attention"), q.shape[0]
        assert isinstance(attend, MultiHeadAttention)
        programs = (
            program_of(("attention", spec), sizes={"n_tokens": rows})
            for spec in (attend.fastest(self.device.target, rows, length), attend)
        )
        program = next(programs)
        nbytes = plan_arena(program).nbytes
        room = self._room(nbytes) if nbytes else None
        if nbytes and room is None:
            program = next(programs)
        given: dict[str, object] = {n.removesuffix("_cache"): each for n, each in self.cache.buffers(layer).items()}
        given |= {"q": q, "out": out, "q_len": rows, "kv_len": length}
        return Step(self.device, program, given | self._kept(program, given), room)

    def _room(self, nbytes: int) -> Buffer | None:
        """Scratch memory of a chunk's attention, kept for all layers; None where there is none."""
        if self._arena is None or self._arena.nbytes < nbytes:
            free = self.device.memory().available
            if nbytes > free > 0:
                return None
            self._arena = self.device.empty(nbytes, "u8")
        return self._arena

    def whole(self, given: Mapping[str, Buffer], causal: bool) -> Step:
        """Queries q, out `[n, n_heads, head_dim]` over k, v `[m, n_kv_heads, head_dim]`, without the cache."""
        return whole_attention(self.device, self.attention, given, causal)

    def rope(self, given: Mapping[str, Buffer], position: object, options: Mapping[str, Any]) -> Step:
        """Rotate q and k, where given, from `position` on: an int, or s32 `[1]` on the device."""
        fields = {"indirect": isinstance(position, Buffer), **options} | ({} if "k" in given else {"n_kv_heads": 0})
        program = program_of(("rotate", self.attention.spec("rope", **fields)), sizes={"rows": _rows(given["q"])})
        return Step(self.device, program, {**given, "position": position})

    def _bind(self, layer: int, program: Program, **given: object) -> Step:
        """Over a layer's memory, with the scratch memory that the Programs of these kernels share."""
        given |= self.cache.buffers(layer)
        return Step(self.device, program, given | self._kept(program, given))

    def _kept(self, program: Program, given: Mapping[str, object]) -> dict[str, Buffer]:
        """Memory of a Program's kernels beside what is given, made once."""
        shared = self._scratch.get(program.specs())
        if shared is None:
            shared = self._scratch[program.specs()] = own_buffers(self.device, program, given)
        return shared


def whole_attention(device: Device, attention: Attention, given: Mapping[str, Buffer], causal: bool) -> Step:
    """q, out `[n, n_heads, head_dim]` over k, v `[m, n_kv_heads, head_dim]` that lie together, of any type."""
    rows, keys = given["q"].shape[0], given["k"].shape[0]
    spec = attention.spec("multi_head_attention", causal=causal, kv_dtype=given["k"].dtype, max_len=0)
    program = program_of(("attention", spec), sizes={"n_tokens": rows, "n_keys": keys})
    return Step(device, program, {**given, "q_len": rows, "kv_len": keys})


def _rows(buffer: Buffer) -> int:
    return buffer.shape[0] if len(buffer.shape) == 3 else 1
