"""wmma in ordinary loads, stores and mma. Its fragments have no layout that programs may know: here they are mma's.

What a lane holds (PTX ISA 9.0, "Matrix Fragments for mma"): with g its quad and q its place in it, rows go by g and the
k of A and B, or the columns of the sums, by q. Registers of a fragment that these do not need are 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ptxgen.nodes import Address, Operand, Vector

_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "s32": 4, "f64": 8, "s8": 1, "u8": 1}
_BITS = {"s4": 4, "u4": 4, "b1": 1}  # of types below a byte: a is by rows and b by columns, and a register is a word
_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "f64": 4, "s8": 16, "u8": 16}  # k of the mma that is used


class _Held(NamedTuple):
    """What a register holds: `neighbours` from (row, column) on, along k or along the columns of the sums."""

    row: int
    column: int
    neighbours: int
    by_quad: str  # "row" or "column": which of them goes by g; the other goes by q times `step`
    step: int


def wmma(words: list[str], operands: tuple[Operand, ...], guard: str) -> str | None:
    """The text of a wmma instruction in others; None for a form that is not supported."""
    shape = next((word for word in words if re.fullmatch(r"m\d+n\d+k\d+", word)), "")
    if guard or not shape:
        return None
    m, n, k = map(int, re.findall(r"\d+", shape))
    if words[1] == "mma":
        packed = not _BITS.keys().isdisjoint(words)
        return _packed_product(words, operands, shape) if packed else _product(words, operands, m, n)
    matrix, kind = words[2], words[-1]
    if kind in _BITS:
        return _packed_load(words, operands, k)
    if kind not in _BYTES:
        return None
    held = list(_fragment(matrix, kind, m, n))
    layout = "row" if "row" in words else "col"
    space = next((word for word in words if word.startswith(("global", "shared"))), "")
    columns = {"a": k, "b": n, "c": n, "d": n}[matrix]
    rows = {"a": m, "b": k, "c": m, "d": m}[matrix]
    address, vector = (operands[1], operands[0]) if words[1] == "load" else (operands[0], operands[1])
    pitch = str(operands[2]) if len(operands) > 2 else str(columns if layout == "row" else rows)
    if not isinstance(address, Address) or not isinstance(vector, Vector):
        return None
    registers = [str(item) for item in vector.items]
    move = _load if words[1] == "load" else _store
    lines: list[str] = []
    for register, each in zip(registers, held, strict=False):
        lines += _place(each, layout, pitch, _BYTES[kind])
        lines += move(register, each, layout, kind, space, pitch)
    lines += [f"mov.b32 {name}, 0;" for name in registers[len(held) :] if words[1] == "load"]
    return _scope(f"add.u64 %$b, {address.base}, {address.offset};", *lines)


def _packed_load(words: list[str], operands: tuple[Operand, ...], k: int) -> str | None:
    """A fragment of A or B in types below a byte: lane q of quad g has word q of row (or column) g."""
    vector, address = operands[:2]
    if not isinstance(address, Address) or not isinstance(vector, Vector):
        return None
    pitch, bits = str(operands[2]) if len(operands) > 2 else str(k), _BITS[words[-1]]
    space = next((f".{word}" for word in words if word.startswith(("global", "shared"))), "")
    return _scope(
        f"add.u64 %$b, {address.base}, {address.offset};",
        f"mul.lo.u32 %$t, %$g, {pitch}; mul.wide.u32 %$o, %$t, {bits}; shr.u64 %$o, %$o, 3; add.u64 %$p, %$b, %$o;",
        f"mul.wide.u32 %$o, %$q, 4; add.u64 %$p, %$p, %$o; ld{space}.b32 {vector.items[0]}, [%$p];",
    )


def _packed_product(words: list[str], operands: tuple[Operand, ...], shape: str) -> str:
    """wmma's fragments of types below a byte are mma's: one instruction for another."""
    kinds = ".".join(word for word in words if word in ("s32", *_BITS))
    bits = next((f".{word}.popc" for word in words if word in ("xor", "and")), "")
    limits = ".satfinite" if words[-1] == "satfinite" else ""
    given = ", ".join(map(str, operands))
    return f"{{ mma.sync.aligned.{shape}.row.col{limits}.{kinds}{bits} {given}; }}"


def _scope(*lines: str) -> str:
    head = ".reg .b16 %$h<4>; .reg .b32 %$l, %$g, %$q, %$r, %$c, %$t; .reg .b64 %$b, %$o, %$p, %$s;"
    quads = "mov.u32 %$l, %laneid; shr.b32 %$g, %$l, 2; and.b32 %$q, %$l, 3;"
    return "{ " + " ".join((head, quads, *lines)) + " }"


def _fragment(matrix: str, kind: str, m: int, n: int) -> Iterator[_Held]:
    """The registers of a fragment in mma's order, tile by tile."""
    wide = 1 if kind == "f64" else 4 // _BYTES[kind]
    halves = [0] if m == 8 else [0, 8]
    if matrix == "a":
        for tile in range(0, m, 16):
            for k in range(0, _DEPTH[kind], 4 * wide):
                yield from (_Held(tile + half, k, wide, "row", wide) for half in halves)
    elif matrix == "b":
        for tile in range(0, n, 8):
            yield from (_Held(k, tile, wide, "column", wide) for k in range(0, _DEPTH[kind], 4 * wide))
    else:
        for tile in range(0, m, 16):
            for column in range(0, n, 8):
                for half in halves:
                    parts = [(0, 2)] if kind == "f16" else [(0, 1), (1, 1)]
                    yield from (_Held(tile + half, column + at, count, "row", 2) for at, count in parts)


def _place(held: _Held, layout: str, pitch: str, size: int) -> list[str]:
    """`%$p`: where a register's first element lies."""
    quad, other = ("%$r", "%$c") if held.by_quad == "row" else ("%$c", "%$r")
    by_g, by_q = (held.row, held.column) if held.by_quad == "row" else (held.column, held.row)
    slow, fast = ("%$r", "%$c") if layout == "row" else ("%$c", "%$r")
    return [
        f"add.u32 {quad}, %$g, {by_g}; mad.lo.u32 {other}, %$q, {held.step}, {by_q};",
        f"mad.lo.u32 %$t, {slow}, {pitch}, {fast}; mul.wide.u32 %$o, %$t, {size}; add.u64 %$p, %$b, %$o;",
    ]


def _is_run(held: _Held, layout: str) -> bool:
    """Whether a register's elements lie side by side in memory."""
    return held.neighbours == 1 or (layout == "row") == (held.by_quad == "row")


def _load(register: str, held: _Held, layout: str, kind: str, space: str, pitch: str) -> list[str]:
    dot = f".{space}" if space else ""
    if _is_run(held, layout):
        return [f"ld{dot}.b{64 if kind == 'f64' else 32} {register}, [%$p];"]
    size, bits = _BYTES[kind], 8 * _BYTES[kind]
    lines = [f"mov.b32 {register}, 0; mul.wide.u32 %$s, {pitch}, {size};"]
    for place in range(held.neighbours):
        lines.append(f"ld{dot}.u{bits} %$t, [%$p]; bfi.b32 {register}, %$t, {register}, {bits * place}, {bits}; "
                     "add.u64 %$p, %$p, %$s;")  # fmt: skip
    return lines


def _store(register: str, held: _Held, layout: str, kind: str, space: str, pitch: str) -> list[str]:
    dot = f".{space}" if space else ""
    if _is_run(held, layout):
        return [f"st{dot}.b{64 if kind == 'f64' else 32} [%$p], {register};"]
    return [f"mul.wide.u32 %$s, {pitch}, {_BYTES[kind]}; mov.b32 {{%$h0, %$h1}}, {register};",
            f"st{dot}.b16 [%$p], %$h0; add.u64 %$p, %$p, %$s; st{dot}.b16 [%$p], %$h1;"]  # fmt: skip


def _product(words: list[str], operands: tuple[Operand, ...], m: int, n: int) -> str | None:
    """A product of tiles of 16 (or 8) rows by 8 columns, an mma each."""
    if not all(isinstance(operand, Vector) for operand in operands):
        return None
    d, a, b, c = ([str(item) for item in operand.items] for operand in operands)  # type: ignore[union-attr]
    options = ".satfinite" if words[-1] == "satfinite" else ""
    types = words[words.index(next(word for word in words if word[0] == "m" and word[1:2].isdigit())) + 1 :]
    types = [word for word in types if word not in ("satfinite", "rn", "rz", "rm", "rp")]
    d_type, kind, c_type = (types[0], "f16", types[1]) if len(types) == 2 else (types[0], types[1], types[-1])
    if kind not in _DEPTH or (kind == "f16" and options):
        return None
    depth = _DEPTH[kind]
    short = m == 8 and kind in ("f64", "s8", "u8")  # mma has 8 rows of these
    shape = f"m{8 if short else 16}n8k{depth}"
    of_a = len(list(_fragment("a", kind, m, n))) // max(m // 16, 1)
    of_b = len(list(_fragment("b", kind, m, n))) // (n // 8)
    sums = "f32" if {d_type, c_type} == {"f16", "f32"} else d_type
    each = (1 if sums == "f16" else 2) * (1 if m == 8 else 2)
    lines = []
    for tile in range(max(m // 16, 1)):
        left = a[tile * of_a : (tile + 1) * of_a]
        if m == 8 and not short:  # rows 8 to 15 are 0
            left = [name for each_ in left for name in (each_, "%$z")]
        for column in range(n // 8):
            place = tile * (n // 8) + column
            right = b[column * of_b : (column + 1) * of_b]
            opcode = f"mma.sync.aligned.{shape}.row.col{options}.{sums}.{kind}.{kind}.{sums}"
            types_ = (d_type, c_type, sums)
            lines += _tile(place, each, (d, c), types_, m == 8 and not short, opcode, left, right)
    head = ".reg .b16 %$x, %$y; .reg .b32 %$z, %$d<4>, %$e<4>; .reg .f32 %$f<4>, %$k<4>; mov.b32 %$z, 0;"
    return "{ " + " ".join((head, *lines)) + " }"


def _tile(place: int, each: int, sides: tuple[list[str], list[str]], types: tuple[str, str, str], half: bool,
          opcode: str, left: list[str], right: list[str]) -> list[str]:  # fmt: skip
    """One mma; sums of another type than the fragment's are converted, missing rows are 0 and dropped."""
    (d, c), (d_type, c_type, sums) = sides, types
    lines: list[str] = []
    pairs = each // 2 if sums == "f32" and "f16" in (d_type, c_type) else each
    from_ = c[place * pairs : (place + 1) * pairs] if c_type != sums else c[place * each : (place + 1) * each]
    into = d[place * pairs : (place + 1) * pairs] if d_type != sums else d[place * each : (place + 1) * each]
    start, end = from_, into
    if c_type != sums:
        start = [f"%$f{n}" for n in range(each)]
        for n, pair in enumerate(from_):
            lines.append(f"mov.b32 {{%$x, %$y}}, {pair}; cvt.f32.f16 %$f{2 * n}, %$x; cvt.f32.f16 %$f{2 * n + 1}, %$y;")
    if d_type != sums:
        end = [f"%$k{n}" for n in range(each)]
    if half:
        spare = "f" if sums == "f32" else "d"
        zero = "0f00000000" if sums == "f32" else "0"
        extra = [f"%${spare}{each + n}" for n in range(each)]
        lines += [f"mov.{'f32' if sums == 'f32' else 'b32'} {name}, {zero};" for name in extra]
        start = [*start, *extra]
        end = [*end, *(f"%${'k' if sums == 'f32' else 'e'}{each + n}" for n in range(each))]
    groups = (f"{{{', '.join(names)}}}" for names in (end, left, right, start))
    lines.append(f"{opcode} {', '.join(groups)};")
    if d_type != sums:
        lines += [f"cvt.rn.f16x2.f32 {pair}, %$k{2 * n + 1}, %$k{2 * n};" for n, pair in enumerate(into)]
    return lines
