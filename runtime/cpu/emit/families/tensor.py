"""cp.async.bulk.tensor and cp.reduce.async.bulk.tensor in tile mode; im2col, gathers and scatters are refused."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.foreign.map_fields import ELEMENT_TYPES, MAGIC, OFFSET
from ptxgen.runtime.cpu.check.made_maps import UNSEEN
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.load_store import address, put
from ptxgen.runtime.cpu.emit.families.mbarrier import each_lane, shared_window
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.support.tensor_boxes import DIMENSIONS
from ptxgen.runtime.cpu.support.tensor_copy import REDUCTIONS

_I32, _I64 = vec("i32"), vec("i64")
_ABSENT = ("im2col", "tile::", "cta_group")
_MAP_REMARK = "the tensor map must be one of Device.tensor_map, with as many dimensions and a type that this takes"
_MADE_REMARK = "a tensor map has 128 bytes, at a multiple of 64"
# field of tensormap.replace -> the field here, the bits of an element of it, what is added to the value
_FIELDS = {
    "global_address": ("address", 64, 0), "rank": ("rank", 8, 1), "box_dim": ("box", 16, 0),
    "global_dim": ("last", 32, -1), "global_stride": ("strides", 64, 0), "element_stride": ("steps", 8, 0),
    "swizzle_mode": ("swizzle", 8, 0), "fill_mode": ("nan", 8, 0),
}  # fmt: skip
_BOX_REMARK = "the box must be aligned to 128 bytes, and the mbarrier initialised"


def _place(e: Emitter, operand: Source, space: str) -> str:
    if not isinstance(operand, nodes.Address):
        raise e.error(f"operand {operand}: must be an address")
    addresses, offset = address(e, operand, space)
    return e.c(f"add {_I64} {addresses}, {splat('i64', offset)}") if offset else addresses


def _map(e: Emitter, operand: Source) -> list[tuple[str, str]]:
    """Columns: address of the map; and after what comes between, its rank and five coordinates."""
    if not isinstance(operand, nodes.Address) or operand.coordinates is None:
        raise e.error(f"operand {operand}: must be a tensor map with coordinates")
    addresses, offset = address(e, operand, "generic")
    if offset:
        addresses = e.c(f"add {_I64} {addresses}, {splat('i64', offset)}")
    items = [e.src(item, "s32") for item in operand.coordinates.items]
    rank = (splat("i64", len(items)), "i64")
    items += ["zeroinitializer"] * (DIMENSIONS - len(items))
    return [(addresses, "i64"), rank, *((item, "i32") for item in items)]


def _refuse_others(e: Emitter, op: Op) -> None:
    absent = next((word for word in op.words if word.startswith(_ABSENT)), None)
    if absent is not None:
        raise e.unsupported()


def _copy(e: Emitter, name: str, map_: list[tuple[str, str]], between: list[tuple[str, str]]) -> None:
    if e.makes_maps:
        each_lane(e, map_[:1], f"call void @made_maps.use(ptr %w, i32 {e.new_site(UNSEEN)}, ARGS)")
    sites = f"i32 {e.new_site(_MAP_REMARK)}, i32 {e.new_site(_BOX_REMARK)}"
    each_lane(e, [map_[0], *between, *map_[1:]], f"call void @tensor.{name}(ptr %w, {sites}, ARGS)")


@emits("cp.async.bulk.tensor", outputs=0)
def tensor(e: Emitter, op: Op) -> None:
    """A box of an array into shared memory, which completes on an mbarrier, or out of it, in a bulk group."""
    _refuse_others(e, op)
    operands = list(op.operands)
    if "L2::cache_hint" in op.words:
        operands.pop()
    if "bulk_group" in op.words:
        _copy(e, "store", _map(e, operands[0]), [(shared_window(e, operands[1]), "i64")])
        return
    ranks = "zeroinitializer"
    if "multicast::cluster" in op.words:
        ranks = e.c(f"and {_I32} {e.src(operands[3], 'b32')}, {splat('i32', 0xFFFF)}")
    shared, bar = shared_window(e, operands[0]), shared_window(e, operands[2])
    _copy(e, "load", _map(e, operands[1]), [(shared, "i64"), (bar, "i64"), (ranks, "i32")])


@emits("cp.reduce.async.bulk.tensor", outputs=0)
def tensor_reduce(e: Emitter, op: Op) -> None:
    """A box in shared memory is combined with the array's elements, in a bulk group."""
    _refuse_others(e, op)
    operation = next(word for word in op.words[3:] if word in REDUCTIONS)
    _copy(e, f"reduce.{operation}", _map(e, op.operands[0]), [(shared_window(e, op.operands[1]), "i64")])


@emits("tensormap.replace", outputs=0)
def replace(e: Emitter, op: Op) -> None:
    """A field of a map: what the executor keeps of it, in its own form."""
    field, target, value = op.words[3], op.operands[0], op.operands[-1]
    ordinal = 0
    if len(op.operands) == 3:
        index = op.operands[1]
        assert isinstance(index, nodes.Immediate)
        ordinal = int(index.value) + (field == "global_stride")  # the first is an element's bytes
    if field == "interleave_layout":
        if not isinstance(value, nodes.Immediate) or value.value:
            raise e.unsupported()
        return
    if field == "elemtype":
        assert isinstance(value, nodes.Immediate)
        if value.value not in ELEMENT_TYPES:
            raise e.unsupported()
        code, size = ELEMENT_TYPES[int(value.value)]
        for name, bits, number in (("dtype", 8, code), ("element", 8, size), ("strides", 64, size)):
            put(e, target, OFFSET[name], bits, splat(f"i{bits}", number))
        return
    name, bits, more = _FIELDS[field]
    wide = 64 if bits == 64 else 32
    given = e.src(value, f"b{wide}")
    if more:
        given = e.c(f"add {vec(f'i{wide}')} {given}, {splat(f'i{wide}', more)}")
    if bits < wide:
        given = e.c(f"trunc {vec(f'i{wide}')} {given} to {vec(f'i{bits}')}")
    put(e, target, OFFSET[name] + ordinal * bits // 8, bits, given)
    if field == "rank":
        put(e, target, OFFSET["magic"], 64, splat("i64", MAGIC))


@emits("tensormap.cp_fenceproxy", outputs=0)
def publish(e: Emitter, op: Op) -> None:
    """A map from shared to global memory; all lanes of a warp name the same bytes."""
    to, source = op.operands[:2]
    addresses = _place(e, to, "global")
    if e.check:
        each_lane(e, [(addresses, "i64")], "call void @made_maps.made(ptr %w, ARGS)")
    sites = f"i32 {e.new_site(_MADE_REMARK)}, i32 {e.new_site(_MADE_REMARK)}"
    columns = [(addresses, "i64"), (shared_window(e, source), "i64")]
    each_lane(e, columns, f"call void @tensor.publish(ptr %w, {sites}, ARGS)")


@emits("fence.proxy.tensormap::generic.acquire", outputs=0)
def acquire(e: Emitter, op: Op) -> None:
    """Copies behind it see the map; only check mode knows the difference."""
    e.c.do("fence seq_cst")
    if e.check:
        each_lane(e, [(_place(e, op.operands[0], "generic"), "i64")], "call void @made_maps.seen(ptr %w, ARGS)")
