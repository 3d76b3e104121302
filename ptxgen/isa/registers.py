"""Special registers: their types, and the lowest PTX ISA version and target of each. Read-only, all of them."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.isa.form import IsaVersion
from ptxgen.isa.pattern import OLDEST


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    """`%tid.x`: a predefined register. `sm` are alternatives for `Target.includes_any`; `()`: any target."""

    name: str
    type: str
    ptx: IsaVersion = OLDEST
    sm: tuple[str, ...] = ()


_SM_90 = ("sm_90",)
_TRIPLES: tuple[tuple[str, IsaVersion, tuple[str, ...]], ...] = (
    ("tid", OLDEST, ()), ("ntid", OLDEST, ()), ("ctaid", OLDEST, ()), ("nctaid", OLDEST, ()),
    ("clusterid", (7, 8), _SM_90), ("nclusterid", (7, 8), _SM_90),
    ("cluster_ctaid", (7, 8), _SM_90), ("cluster_nctaid", (7, 8), _SM_90),
)  # fmt: skip
_SINGLES: tuple[tuple[str, str, IsaVersion, tuple[str, ...]], ...] = (
    *((name, "u32", OLDEST, ()) for name in ("laneid", "warpid", "nwarpid", "smid", "nsmid", "clock", "clock_hi")),
    *((f"lanemask_{name}", "u32", OLDEST, ()) for name in ("eq", "le", "lt", "ge", "gt")),
    *((name, "u64", OLDEST, ()) for name in ("gridid", "clock64", "globaltimer")),
    *((name, "u32", OLDEST, ()) for name in ("globaltimer_lo", "globaltimer_hi")),
    *((name, "u32", OLDEST, ()) for name in ("total_smem_size", "dynamic_smem_size")),
    *((f"pm{i}", "u32", OLDEST, ()) for i in range(8)),
    *((f"pm{i}_64", "u64", OLDEST, ()) for i in range(8)),
    *((f"envreg{i}", "b32", OLDEST, ()) for i in range(32)),
    *((f"reserved_smem_offset_{name}", "b32", (7, 6), ("sm_80",)) for name in ("begin", "end", "cap", "0", "1")),
    ("aggr_smem_size", "u32", (8, 1), _SM_90),
    ("current_graph_exec", "u64", (8, 0), ()),
    ("is_explicit_cluster", "pred", (7, 8), _SM_90),
    ("cluster_ctarank", "u32", (7, 8), _SM_90),
    ("cluster_nctarank", "u32", (7, 8), _SM_90),
)

SPECIAL_REGISTERS: dict[str, SpecialRegister] = {
    f"%{name}.{axis}": SpecialRegister(f"%{name}.{axis}", "u32", ptx, sm)
    for name, ptx, sm in _TRIPLES
    for axis in "xyzw"
} | {f"%{name}": SpecialRegister(f"%{name}", type, ptx, sm) for name, type, ptx, sm in _SINGLES}


def special_register(name: str) -> SpecialRegister | None:
    """The special register of this name (`"%tid.x"`), or None. PTX ISA 9.0, "Special Registers"."""
    return SPECIAL_REGISTERS.get(name)
