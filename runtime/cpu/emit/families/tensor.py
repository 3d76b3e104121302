"""cp.async.bulk.tensor and cp.reduce.async.bulk.tensor in tile mode; im2col, gathers and scatters are refused."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.load_store import address
from ptxgen.runtime.cpu.emit.families.mbarrier import each_lane, shared_window
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.support.tensor_boxes import DIMENSIONS
from ptxgen.runtime.cpu.support.tensor_copy import REDUCTIONS

_I32, _I64 = vec("i32"), vec("i64")
_ABSENT = ("im2col", "tile::", "cta_group")
_MAP_REMARK = "the tensor map must be one of Device.tensor_map, with as many dimensions and a type that this takes"
_BOX_REMARK = "the box must be aligned to 128 bytes, and the mbarrier initialised"


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
