"""Copy a sequence between the single KV cache and a slot of the batched one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, f16, f32, s8, s32
from ptxgen.idioms.kv_cache import KV_DTYPES
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.threads import ceil_div, row_index
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Launch, Param, buffer, scalar
from ptxgen.lengths import MOST, Past
from ptxgen.scales import scale_groups
from ptxgen.spec.cache_fields import CAPACITY, KV_HEADS

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.kernel import Arrays
    from ptxgen.targets import Target

THREADS = 256
FLIGHT = 4  # accesses of a thread in flight
CTAS = 1024  # of all heads together, at most about: more would only start later


@kernel_type
class KvCacheGather(KernelType):
    """Copy the first `seq_len` positions of every head, K and V, with int8 also their scales.

    k_single, v_single `[n_kv_heads, max_len, head_dim]`; k_batched, v_batched `[batch, n_kv_heads, max_len, head_dim]`.
    `direction` "to_slot": from the single cache to slot `slot`; "from_slot": the other way. A slot outside
    0 … n_slots - 1 or a seq_len below 1 copies nothing; a seq_len above max_len counts as max_len. `indirect`: seq_len
    is read from device memory.
    """

    max_len: int = field(like=CAPACITY)
    head_dim: int
    n_kv_heads: int = field(like=KV_HEADS)
    kv_dtype: DType = f32
    direction: str = field(default="to_slot", doc="to_slot: single cache to slot; from_slot: the other way")
    indirect: bool = False
    programmatic: bool = False

    sizes = {"batch": 3, "slot": -1, "seq_len": -1}  # -1: one at random
    trials = ({}, {"slot": 1, "seq_len": 23})
    goldens = (
        dict(max_len=64, head_dim=64, n_kv_heads=2),
        dict(max_len=64, head_dim=40, n_kv_heads=3, kv_dtype=s8, direction="from_slot", indirect=True),
        dict(max_len=64, head_dim=16, n_kv_heads=1, programmatic=True),
    )

    def rules(self) -> Iterator[str]:
        yield from rules.between("max_len", self.max_len, 1, 1 << 30)
        yield from rules.multiple_of("head_dim", self.head_dim, 8, 8, 512)
        yield from rules.between("n_kv_heads", self.n_kv_heads, 1, 1024)
        yield from rules.one_of("kv_dtype", self.kv_dtype.name, KV_DTYPES)
        yield from rules.one_of("direction", self.direction, ("to_slot", "from_slot"))

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)

    @property
    def row_bytes(self) -> int:
        """Bytes of one position of one head."""
        return self.head_dim * self.kv_dtype.bytes

    @property
    def blocks(self) -> int:
        """CTAs of a head of K or V: enough for a full cache, few enough for one wave."""
        whole = ceil_div(self.max_len * self.row_bytes, THREADS * FLIGHT * _unit(self.row_bytes))
        return min(whole, ceil_div(CTAS, 2 * self.n_kv_heads))

    def params(self) -> tuple[Param, ...]:
        caches = {"single": (self.n_kv_heads, self.max_len), "batched": ("batch", self.n_kv_heads, self.max_len)}
        access = {"single": "in", "batched": "inout"}
        if self.direction == "from_slot":
            access = {"single": "inout", "batched": "in"}
        params = [
            buffer(f"{x}_{cache}", self.kv_dtype, *rows, self.head_dim, access=access[cache])
            for cache, rows in caches.items()
            for x in "kv"
        ]
        if self.kv_dtype == s8:
            groups = scale_groups(self.head_dim)
            params += [
                buffer(f"{x}_scales_{cache}", f16, *rows, groups, access=access[cache], align=_unit(2 * groups))
                for cache, rows in caches.items()
                for x in "kv"
            ]
        length = buffer("seq_len", s32, 1, align=4) if self.indirect else scalar("seq_len", s32)
        return (*params, scalar("slot", s32), scalar("n_slots", s32), length)

    def bundle_name(self, role: str) -> str:
        return f"copy_{self.direction}"

    def launch(self, target: Target) -> Launch:
        return Launch((self.blocks, self.n_kv_heads, 2), (THREADS, 1, 1), programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        wait_for_producer(b, self.programmatic)
        with b.fragment("locate", "this thread's first unit, its head, K or V, and the length"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            block = b.op("mov.u32", "block", b.special("ctaid.x"))
            first = b.op("mad.lo.u32", "first", block, THREADS * FLIGHT, thread)
            head = b.op("mov.u32", "head", b.special("ctaid.y"))
            part = b.op("mov.u32", "part", b.special("ctaid.z"))
            is_v = b.op("setp.ne.u32", "is_v", part, 0)
            slot, length = b.ld_param("slot"), b.ld_param("seq_len")
            if self.indirect:
                length = b.op("ld.global.s32", "length", length[0])
            b.op("min.s32", length, length, self.max_len)
            # One unsigned comparison refuses negative slots too.
            inside = b.op("setp.lt.u32", "copies", slot, b.ld_param("n_slots"))
            b.op("setp.gt.and.s32", inside, length, 0, inside)
        with b.fragment("head_rows"):
            slot_head = row_index(b, "slot_head", slot, self.n_kv_heads, head)
        self._copy(b, "", self.row_bytes, is_v, head, slot_head, first, length)
        if self.kv_dtype == s8:
            self._copy(b, "_scales", 2 * scale_groups(self.head_dim), is_v, head, slot_head, first, length)
        else:
            b.without("begin_scales")

    def _copy(
        self, b: Builder, what: str, row_bytes: int, is_v: Reg, head: Reg, slot_head: Reg, first: Reg, length: Reg
    ) -> None:
        """Fragments `begin`, `move`, `advance` of the loop over one head's rows, suffixed with what they copy."""
        unit = _unit(row_bytes)
        with b.fragment(f"begin{what}", f"source, target and number of the units of {'scales' if what else 'rows'}"):

            def rows(cache: str, index: Reg) -> Reg:
                k, v = b.ld_param(f"k{what}_{cache}"), b.ld_param(f"v{what}_{cache}")
                at: Reg = b.op("selp.b64", f"{cache}{what}", v, k, is_v)
                b.op("mad.lo.u64", at, index, self.max_len * row_bytes, at)
                return at

            wide_head = b.op("cvt.u64.u32", f"wide_head{what}", head)
            source, target = rows("single", wide_head), rows("batched", slot_head)
            if self.direction == "from_slot":
                source, target = target, source
            units = b.op("mul.wide.u32", f"units{what}", length, row_bytes // unit)
            index = b.op("cvt.u64.u32", f"index{what}", first)
            b.op("mad.lo.u64", source, index, unit, source)
            b.op("mad.lo.u64", target, index, unit, target)
            b.op("setp.lt.u64", f"begins{what}", index, units)
        with b.fragment(f"move{what}", "load some units, then store them"):
            self._move(b, what, unit, index, units, source, target)
        with b.fragment(f"advance{what}", "on to the thread's next units"):
            step = self.blocks * THREADS * FLIGHT
            b.op("add.u64", index, index, step)
            b.op("add.u64", source, source, step * unit)
            b.op("add.u64", target, target, step * unit)
            b.op("setp.lt.u64", f"again{what}", index, units)

    def _move(self, b: Builder, what: str, unit: int, index: Reg, units: Reg, source: Reg, target: Reg) -> None:
        """Load `FLIGHT` units a thread, then store them."""
        words, type = (unit // 4, "b32") if unit >= 4 else (1, "b16")
        values = b.array(f"value{what}", type, FLIGHT * words)
        exists = b.array(f"exists{what}", "pred", FLIGHT)
        there = b.reg(f"there{what}", "u64")
        suffix = f".v{words}.{type}" if words > 1 else f".{type}"
        pieces = [values[words * i : words * (i + 1)] if words > 1 else values[i] for i in range(FLIGHT)]
        for i, piece in enumerate(pieces):
            b.op("add.u64", there, index, i * THREADS)
            b.op("setp.lt.u64", exists[i], there, units)
            b.op(f"ld.global{suffix}", piece, source[i * THREADS * unit], pred=exists[i])
        for i, piece in enumerate(pieces):
            b.op(f"st.global{suffix}", target[i * THREADS * unit], piece, pred=exists[i])

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        batch = sizes["batch"]
        return {"batch": (1, MOST), "slot": (0, batch - 1), "n_slots": (1, batch), "seq_len": (0, self.max_len)}

    def past(self, arguments: Arrays) -> Past:
        source = "single" if self.direction == "to_slot" else "batched"
        length = int(arguments["seq_len"][0] if self.indirect else arguments["seq_len"])
        for name in (name for name in arguments if name.endswith(source)):
            yield arguments[name], (..., slice(length, None), slice(None))

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        import numpy as np

        slot, length = int(rng.integers(0, sizes["batch"])), int(rng.integers(1, self.max_len + 1))
        slot = sizes["slot"] if sizes["slot"] >= 0 else slot
        length = sizes["seq_len"] if sizes["seq_len"] >= 0 else length
        return {
            "slot": slot,
            "n_slots": sizes["batch"],
            "seq_len": np.array([length], np.int32) if self.indirect else length,
        }

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        slot, length = int(a["slot"]), min(int(np.ravel(a["seq_len"])[0]), self.max_len)
        copies = 0 <= slot < a["n_slots"] and length > 0
        out = {}
        for x in ("k", "v", "k_scales", "v_scales") if self.kv_dtype == s8 else ("k", "v"):
            single, batched = a[f"{x}_single"].copy(), a[f"{x}_batched"].copy()
            if copies and self.direction == "to_slot":
                batched[slot, :, :length] = single[:, :length]
            elif copies:
                single[:, :length] = batched[slot, :, :length]
            written = "batched" if self.direction == "to_slot" else "single"
            out[f"{x}_{written}"] = batched if self.direction == "to_slot" else single
        return out


def _unit(row_bytes: int) -> int:
    """Widest access in bytes that a row of so many is a multiple of."""
    return next(unit for unit in (16, 8, 4, 2) if row_bytes % unit == 0)
