"""tensormap.replace and its copy as stores into the executor's form of a tensor map (`map_fields.py`)."""

from __future__ import annotations

from ptxgen.foreign.map_fields import MAGIC, OFFSET
from ptxgen.nodes import Address, Immediate, Operand

# PTX's numbers of element types → (bytes of an element, the number that the executor's maps have)
_ELEMENTS = {
    0: (1, 0), 1: (2, 1), 2: (4, 2), 3: (4, 3), 4: (8, 4), 5: (8, 5), 6: (2, 6), 7: (4, 7), 8: (4, 7), 9: (8, 8),
    10: (2, 9), 11: (4, 7), 12: (4, 7),
}  # fmt: skip


def tensormap(words: list[str], operands: tuple[Operand, ...], guard: str) -> str | None:
    """The text of a tensormap instruction in others; None for what the executor's maps do not hold."""
    where = operands[0]
    if not isinstance(where, Address):
        return None
    if words[1] == "cp_fenceproxy":
        return _copied(operands, guard)
    space = next((f".{word}" for word in words if word in ("global", "shared::cta")), "")
    field, value = words[3], operands[-1]
    number = int(operands[1].value) if len(operands) == 3 and isinstance(operands[1], Immediate) else 0

    def put(kind: str, offset: int, what: object) -> str:
        return f"{guard}st{space}.{kind} [{where.base}+{where.offset + offset}], {what};"

    fixed = int(value.value) if isinstance(value, Immediate) else -1
    if field == "global_address":
        lines = [put("b64", OFFSET["magic"], MAGIC), put("b64", OFFSET["address"], value)]
    elif field == "rank":
        lines = [f"add.u32 %$t, {value}, 1;", put("b8", OFFSET["rank"], "%$t")]
    elif field == "box_dim":
        lines = [f"cvt.u16.u32 %$h, {value};", put("b16", OFFSET["box"] + 2 * number, "%$h")]
    elif field == "element_stride":
        lines = [f"mov.b32 %$t, {value};", put("b8", OFFSET["steps"] + number, "%$t")]
    elif field == "global_dim":
        lines = [f"add.u32 %$t, {value}, -1;", put("b32", OFFSET["last"] + 4 * number, "%$t")]
    elif field == "global_stride":
        lines = [put("b64", OFFSET["strides"] + 8 * (number + 1), value)]
    elif field == "elemtype" and fixed in _ELEMENTS:
        size, kind = _ELEMENTS[fixed]
        lines = [
            put("b64", OFFSET["strides"], size),
            _byte(put, OFFSET["element"], size),
            _byte(put, OFFSET["dtype"], kind),
        ]
    elif field == "swizzle_mode" and 0 <= fixed <= 3:
        lines = [_byte(put, OFFSET["swizzle"], fixed)]
    elif field == "fill_mode" and 0 <= fixed <= 1:
        lines = [_byte(put, OFFSET["nan"], fixed)]
    elif field == "interleave_layout" and fixed == 0:
        lines = []
    else:
        return None
    return "{ .reg .b16 %$h; .reg .b32 %$t; " + " ".join(lines) + " }"


def _byte(put, offset: int, value: int) -> str:  # type: ignore[no-untyped-def]
    return f"mov.b32 %$t, {value}; {put('b8', offset, '%$t')}"


def _copied(operands: tuple[Operand, ...], guard: str) -> str | None:
    """128 bytes from shared to global memory, four by each lane, and then a fence."""
    to, from_ = operands[:2]
    if not (isinstance(to, Address) and isinstance(from_, Address)):
        return None
    return (
        "{ .reg .b32 %$l, %$t; .reg .b64 %$o, %$a, %$b; mov.u32 %$l, %laneid; mul.wide.u32 %$o, %$l, 4; "
        f"add.u64 %$a, {from_.base}, %$o; add.u64 %$b, {to.base}, %$o; "
        f"{guard}ld.shared.b32 %$t, [%$a+{from_.offset}]; {guard}st.global.b32 [%$b+{to.offset}], %$t; "
        f"{guard}fence.acq_rel.gpu; bar.warp.sync -1; }}"
    )
