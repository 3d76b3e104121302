"""Rows: asynchronous copies: cp.async, bulk copies and reductions, tensor copies, their groups, tensormaps."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_ASYNC = "Data Movement and Conversion Instructions: Asynchronous copy: "
_HINT = "H=L2::cache_hint?"
_MBAR = "mbarrier::complete_tx::bytes"
_REDUCE = "add|min|max|inc|dec|and|or|xor"
_BULK = "8.0 sm_90"
_SIZE = "u32@0..1048560/16"


def _cp_async() -> tuple[Row, ...]:
    rows = []
    fetch = "L2::64B|L2::128B|L2::256B?"
    raises = "L2::64B=7.4,sm_80 L2::128B=7.4,sm_80 L2::256B=7.4,sm_80"
    for hint, policy in (("", ""), ("L2::cache_hint", " u64:r")):
        for level, sizes in (("ca", "4|8|16"), ("cg", "16")):
            copy = f"[D] [global] u32:i@{sizes}"
            operands = f"{copy}{policy} / {copy} u32@0..16{policy} / {{7.5,sm_80}}{copy} pred:rn{policy}"
            pattern = f"cp async {level} D=shared|shared::cta global {hint} {fetch}"
            rows.append(Row(pattern, operands, "7.0 sm_80", raises))
    return tuple(rows)


_BULK_COPY = (
    Row(f"cp async bulk D=shared::cluster S=global {_MBAR} M=multicast::cluster? {_HINT}",
        f"[D] [S] {_SIZE} [shared::cta] (M)u16 (H)u64:r", _BULK),
    Row(f"cp async bulk D=shared::cta S=global {_MBAR} {_HINT}", f"[D] [S] {_SIZE} [shared::cta] (H)u64:r",
        "8.6 sm_90"),
    Row(f"cp async bulk D=shared::cluster S=shared::cta {_MBAR}", f"[D] [S] {_SIZE} [shared::cluster]", _BULK),
    Row(f"cp async bulk D=global S=shared::cta bulk_group {_HINT}", f"[D] [S] {_SIZE} (H)u64:r", _BULK),
    Row(f"cp async bulk D=global S=shared::cta bulk_group {_HINT} cp_mask", f"[D] [S] {_SIZE} (H)u64:r u16",
        "8.6 sm_100"),
)  # fmt: skip

_INT_TYPES = ("add u32|s32|u64", "min|max u32|s32", "inc|dec u32", "and|or|xor b32")
_GLOBAL_TYPES = ("add u32|s32|u64|f32|f64", "min|max u32|s32|u64|s64|f16|bf16", "inc|dec u32",
                 "and|or|xor b32|b64", "add noftz f16|bf16")  # fmt: skip


def _reductions() -> tuple[Row, ...]:
    shared = f"cp reduce async bulk D=shared::cluster S=shared::cta {_MBAR}"
    outward = f"cp reduce async bulk D=global S=shared::cta bulk_group {_HINT}"
    return (
        *(Row(f"{shared} {ops}", f"[D] [S] {_SIZE} [shared::cluster]", _BULK) for ops in _INT_TYPES),
        *(Row(f"{outward} {ops}", f"[D] [S] {_SIZE} (H)u64:r", _BULK) for ops in _GLOBAL_TYPES),
    )


def _tensor_loads() -> list[Row]:
    rows = []
    for dims in range(1, 6):
        head = f"cp async bulk tensor {dims}d"
        tail = "(M)u16 (H)u64:r"
        cluster = f"{_MBAR} M=multicast::cluster? cta_group::1|cta_group::2? {_HINT}"
        cta = f"{_MBAR} cta_group::1|cta_group::2? {_HINT}"
        groups = "cta_group::1=8.6,sm_100f|sm_110f cta_group::2=8.6,sm_100f|sm_110f"
        tile = f"[D] []*{dims} [shared::cta] {tail}"
        rows += [
            Row(f"{head} D=shared::cluster global tile? {cluster}", tile, _BULK, groups),
            Row(f"{head} D=shared::cta global tile? {cta}", tile, "8.6 sm_90", groups),
        ]
        if dims > 2:
            offsets = f"[D] []*{dims} [shared::cta] b16*{dims - 2} {tail}"
            rows += [
                Row(f"{head} D=shared::cluster global im2col {cluster}", offsets, _BULK, groups),
                Row(f"{head} D=shared::cta global im2col {cta}", offsets, "8.6 sm_90", groups),
            ]
    return rows


def _tensor_others() -> list[Row]:
    rows = []
    for dims in range(1, 6):
        modes = "tile|im2col_no_offs" if dims > 2 else "tile"
        rows += [
            Row(f"cp async bulk tensor {dims}d global shared::cta {modes}? bulk_group {_HINT}",
                f"[]*{dims} [shared::cta] (H)u64:r", _BULK),
            Row(f"cp reduce async bulk tensor {dims}d global shared::cta {_REDUCE} {modes}? bulk_group {_HINT}",
                f"[]*{dims} [shared::cta] (H)u64:r", _BULK),
            Row(f"cp async bulk prefetch tensor {dims}d L2 global tile? {_HINT}", f"[]*{dims} (H)u64:r", _BULK),
        ]  # fmt: skip
        if dims > 2:
            rows.append(Row(f"cp async bulk prefetch tensor {dims}d L2 global im2col {_HINT}",
                            f"[]*{dims} b16*{dims - 2} (H)u64:r", _BULK))  # fmt: skip
    return rows


def _gathers() -> tuple[Row, ...]:
    """Four rows of a 2-D tensor at once: one column and four row coordinates."""
    load = f"cp async bulk tensor 2d D=shared::cluster global tile::gather4 {_MBAR} M=multicast::cluster? "
    local = f"cp async bulk tensor 2d D=shared::cta global tile::gather4 {_MBAR} "
    groups = "cta_group::1=8.6,sm_100f|sm_110f cta_group::2=8.6,sm_100f|sm_110f"
    options = f"cta_group::1|cta_group::2? {_HINT}"
    operands = "[D] []*5 [shared::cta] (M)u16 (H)u64:r"
    return (
        Row(f"{load}{options}", operands, _GATHER, groups),
        Row(f"{local}{options}", operands, "8.6 sm_100", groups),
        Row(f"cp async bulk tensor 2d global shared::cta tile::scatter4 bulk_group {_HINT}",
            "[]*5 [shared::cta] (H)u64:r", _GATHER),
        Row(f"cp async bulk prefetch tensor 2d L2 global tile::gather4 {_HINT}", "[]*5 (H)u64:r", _GATHER),
    )  # fmt: skip


_GATHER = "8.6 sm_100f|sm_110f"
_REPLACE = "8.3 sm_90a|sm_100f|sm_110f|sm_120f"
_REPLACE_HEAD = "tensormap replace tile"
_REPLACE_SPACE = "S=global|shared::cta?"

SECTIONS: dict[str, tuple[Row, ...]] = {
    f"{_ASYNC}cp.async": _cp_async(),
    f"{_ASYNC}cp.async.commit_group": (Row("cp async commit_group", "", "7.0 sm_80"),),
    f"{_ASYNC}cp.async.wait_group": (
        Row("cp async wait_group", "u32:i", "7.0 sm_80"),
        Row("cp async wait_all", "", "7.0 sm_80"),
    ),
    f"{_ASYNC}cp.async.bulk": _BULK_COPY,
    f"{_ASYNC}cp.reduce.async.bulk": _reductions(),
    f"{_ASYNC}cp.async.bulk.prefetch": (
        Row(f"cp async bulk prefetch L2 S=global {_HINT}", f"[S] {_SIZE} (H)u64:r", _BULK),
    ),
    f"{_ASYNC}cp.async.bulk.commit_group": (Row("cp async bulk commit_group", "", _BULK),),
    f"{_ASYNC}cp.async.bulk.wait_group": (Row("cp async bulk wait_group read?", "u32:i", _BULK),),
    f"{_ASYNC}cp.async.bulk.tensor": (*_tensor_loads(), *_tensor_others(), *_gathers()),
    f"{_ASYNC}tensormap.replace": (
        Row(f"{_REPLACE_HEAD} global_address {_REPLACE_SPACE} b1024 b64", "[S] b64", _REPLACE),
        Row(f"{_REPLACE_HEAD} rank {_REPLACE_SPACE} b1024 b32", "[S] u32", _REPLACE),
        Row(f"{_REPLACE_HEAD} box_dim|global_dim|element_stride {_REPLACE_SPACE} b1024 b32", "[S] b32:i@0..4 u32",
            _REPLACE),
        Row(f"{_REPLACE_HEAD} global_stride {_REPLACE_SPACE} b1024 b64", "[S] b32:i@0..4 b64", _REPLACE),
        *(Row(f"{_REPLACE_HEAD} {field} {_REPLACE_SPACE} b1024 b32", f"[S] b32:i@0..{most}", _REPLACE)
          for field, most in (("elemtype", 12), ("interleave_layout", 2), ("swizzle_mode", 3), ("fill_mode", 1))),
    ),
    f"{_ASYNC}tensormap.cp_fenceproxy": (
        Row("tensormap cp_fenceproxy global shared::cta tensormap::generic release cta|cluster|gpu|sys sync aligned",
            "[global] [shared::cta] u32:i@128", "8.3 sm_90"),
    ),
}  # fmt: skip
