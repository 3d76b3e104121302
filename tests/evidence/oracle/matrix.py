"""Matrix instructions of the oracle: mma.sync, ldmatrix, stmatrix, movmatrix (PTX ISA 9.7.14), wgmma (9.7.15)."""

from __future__ import annotations

import re

import numpy as np

from tests.evidence.oracle.access import space_of
from tests.evidence.oracle.machine import Machine, handles
from tests.evidence.oracle.memory import SHARED
from tests.evidence.oracle.numbers import DTYPES, is_float, narrow
from tests.evidence.oracle.program import Op
from tests.evidence.oracle.warp import constant

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "f32": 32, "s32": 32, "f64": 64,
        "s4": 4, "u4": 4, "b1": 1}  # fmt: skip


def warps_of(m: Machine) -> list[np.ndarray]:
    """Positions within the active threads, warp by warp, in lane order."""
    number = m.warp[m.active]
    return [np.flatnonzero(number == w) for w in np.unique(number)]


def unpack(m: Machine, operand: tuple, kind: str) -> np.ndarray:
    """Elements `[active, registers, elements per register]` of a fragment."""
    width, out = BITS[kind], []
    for register in operand:
        if width == 64 or kind in ("f32", "s32"):
            out.append(m.get(register, kind)[:, None])
            continue
        raw = m.get(register, "b32")
        if width < 8:
            out.append(parts_of(raw, kind))
            continue
        values = np.ascontiguousarray(raw).view(DTYPES[kind]).reshape(raw.size, -1)
        if kind == "tf32":
            values = (raw & np.uint32(0xFFFFE000)).view(np.float32).reshape(-1, 1)
        out.append(values)
    return np.stack(out, 1)


def parts_of(raw: np.ndarray, kind: str) -> np.ndarray:
    """Elements of less than a byte, from the lowest bits on: `[words, elements per word]`."""
    width = BITS[kind]
    values = (raw[:, None] >> np.arange(0, 32, width, dtype=np.uint32) & np.uint32((1 << width) - 1)).astype(np.int64)
    return values - 16 * (values > 7) if kind == "s4" else values


def pack(m: Machine, operand: tuple, kind: str, values: np.ndarray) -> None:
    """Elements `[active, registers, elements per register]` into a fragment's registers."""
    for n, register in enumerate(operand):
        part = np.ascontiguousarray(values[:, n])
        if part.shape[1] == 1:
            m.set(register, kind, part[:, 0])
        else:
            m.set(register, "b32", part.view(np.uint32).reshape(-1))


def places(part: str, rows: int, count: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column `[32, count, each]` of every element of a fragment: A [m, k], B [k, n], C [m, n].

    PTX ISA 9.7.14.5 states them shape by shape; they are all this one pattern.
    """
    lane, reg, j = np.ogrid[:32, :count, :each]
    group, quad = lane // 4, lane % 4
    zero = np.zeros((32, count, each), int)
    if part == "a":
        half, block = (reg % 2, reg // 2) if rows == 16 else (0, reg)
        return zero + group + 8 * half, zero + block * 4 * each + quad * each + j
    if part == "b":
        return zero + reg * 4 * each + quad * each + j, zero + group
    flat = reg * each + j
    return zero + group + 8 * (flat // 2), zero + quad * 2 + flat % 2


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: str, op: Op) -> np.ndarray:
    """a @ b + c: in integers exactly, in floats by float64, whose error is far below the result's last bit."""
    if is_float(kind):
        with np.errstate(all="ignore"):
            return narrow(a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64), kind)
    a, b = a.astype(np.int64), b.astype(np.int64)
    exact = c + (a @ (1 - b) + (1 - a) @ b if "xor" in op else a @ b)
    return (
        (np.clip(exact, -(2**31), 2**31 - 1) if "satfinite" in op else exact & 0xFFFFFFFF)
        .astype(np.uint32)
        .view(np.int32)
    )


@handles("mma")
def mma(m: Machine, op: Op) -> None:
    """mma.sync of every shape with the regular fragment pattern."""
    shape = next(w for w in op.mods if re.fullmatch(r"m\d+n\d+k\d+", w))
    rows, columns, depth = map(int, re.findall(r"\d+", shape))
    d_kind, a_kind, b_kind, c_kind = [w for w in op.mods if w in BITS]
    fragments = [unpack(m, o, k) for o, k in zip(op.args[1:4], (a_kind, b_kind, c_kind), strict=True)]
    each = 32 // BITS[d_kind] if BITS[d_kind] < 32 else 1
    count = rows * columns // 32 // each
    out = np.zeros((m.active.size, count, each), DTYPES[d_kind])
    for lanes in warps_of(m):
        matrices, sizes = [], ((rows, depth), (depth, columns), (rows, columns))
        for part, fragment, size in zip("abc", fragments, sizes, strict=True):
            matrix = np.zeros(size, np.float64 if is_float(d_kind) else np.int64)
            matrix[places(part, rows, *fragment.shape[1:])] = fragment[lanes].astype(matrix.dtype)
            matrices.append(matrix)
        a, b, c = matrices
        out[lanes] = multiply(a, b, c, d_kind, op)[places("c", rows, count, each)]
    pack(m, op.args[0], d_kind, out)


@handles("ldmatrix", "stmatrix")
def matrix_move(m: Machine, op: Op) -> None:
    """8 x 8 matrices of 16 bits; lane 8 i + r holds the address of row r of matrix i."""
    load = op.name == "ldmatrix"
    count = int(next(w for w in op.mods if w in ("x1", "x2", "x4"))[1:])
    registers, place = (op.args[0], op.args[1]) if load else (op.args[1], op.args[0])
    registers = registers if isinstance(registers, tuple) else (registers,)
    address = m.at(place, space_of(op))
    row, column = np.arange(32)[:, None] // 4, np.arange(32)[:, None] % 4 * 2 + np.arange(2)
    if "trans" in op:
        row, column = column, row
    row, column = np.broadcast_arrays(row, column)
    values = [np.zeros((m.active.size, 2), np.uint16) for _ in registers]
    if not load:
        values = [m.get(r, "b32").view(np.uint16).reshape(-1, 2) for r in registers]
    for lanes in warps_of(m):
        for n in range(count):
            holders = lanes[8 * n : 8 * n + 8]
            at = m.spaces.place(address[holders], 16, m.active[holders])
            if load:
                matrix = np.ascontiguousarray(m.spaces.load(at, 16)).view(np.uint16)
                values[n][lanes] = matrix[row, column]
            else:
                matrix = np.zeros((8, 8), np.uint16)
                matrix[row, column] = values[n][lanes]
                m.spaces.store(at, matrix.view(np.uint8))
    if load:
        for register, value in zip(registers, values, strict=True):
            m.set(register, "b32", np.ascontiguousarray(value).view(np.uint32).reshape(-1))


@handles("movmatrix")
def transpose(m: Machine, op: Op) -> None:
    """An 8 x 8 matrix of 16 bits, transposed across the warp."""
    value = m.get(op.args[1], "b32").view(np.uint16).reshape(-1, 2)
    out = np.zeros_like(value)
    for lanes in warps_of(m):
        out[lanes] = value[lanes].reshape(8, 8).T.reshape(32, 2)
    m.set(op.args[0], "b32", np.ascontiguousarray(out).view(np.uint32).reshape(-1))


# warpgroup --------------------------------------------------------------------------------------------------------
def descriptor_matrix(
    m: Machine, thread: int, raw: int, extent: int, depth: int, kind: str, k_major: bool
) -> np.ndarray:
    """The operand `[extent, depth]` that a shared-memory matrix descriptor names, seen from `thread`.

    PTX ISA 9.7.15.5 "Shared memory matrix layout"; the layouts are those of CUTLASS's comments on canonical layouts.
    """
    start, leading, stride = (raw & 0x3FFF) << 4, (raw >> 16 & 0x3FFF) << 4, (raw >> 32 & 0x3FFF) << 4
    swizzle = {0: 0, 1: 128, 2: 64, 3: 32}[raw >> 62]
    if kind == "b1":
        matrix = descriptor_matrix(m, thread, raw, extent, depth // 8, "u8", k_major)
        return np.unpackbits(matrix, axis=1, bitorder="little")
    size = BITS[kind] // 8
    t = 16 // size
    i, k = np.ogrid[:extent, :depth]
    if k_major:
        row = swizzle or 16
        offset = i // 8 * stride + i % 8 * row + (k * size if swizzle else k // t * leading + k % t * size)
    elif swizzle:
        wide = swizzle // size
        offset = i // wide * leading + i % wide * size + k // 8 * stride + k % 8 * swizzle
    else:
        offset = i // t * stride + i % t * size + k // 8 * leading + k % 8 * 16
    address = start + offset
    shift = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    address = address ^ (address >> 7 & shift) << 4
    flat = SHARED + address.reshape(-1)
    at = m.spaces.place(flat, size, np.full(flat.size, thread))
    return m.spaces.load(at, size).copy().view(DTYPES[kind]).reshape(extent, depth)


@handles("wgmma")
def wgmma(m: Machine, op: Op) -> None:
    """wgmma.mma_async at once (its wait is a no-op here); A from registers or a descriptor."""
    if op.mods[0] != "mma_async":
        return
    shape = next(w for w in op.mods if re.fullmatch(r"m64n\d+k\d+", w))
    rows, columns, depth = map(int, re.findall(r"\d+", shape))
    d_kind, a_kind, b_kind = [w for w in op.mods if w in BITS]
    d, a, b, scale_d, *rest = op.args
    flags = [constant(o) for o in rest]
    negate_a, negate_b = flags[:2] if len(flags) >= 2 else (1, 1)
    major = flags[2:]
    trans_b = major[-1] if major else 0
    trans_a = major[0] if len(major) == 2 else 0
    keep = m.get(scale_d, "pred")
    each = 2 if BITS[d_kind] == 16 else 1
    old = unpack(m, d, d_kind)
    out = np.zeros_like(old)
    group = m.in_cta[m.active] // 128 + 1024 * m.cta[m.active]
    for number in np.unique(group):
        inside = np.flatnonzero(group == number)
        row, column = warpgroup_places(len(d), each)
        c = np.zeros((rows, columns), np.float64 if is_float(d_kind) else np.int64)
        c[row, column] = np.where(keep[inside][:, None, None], old[inside], 0)
        first = int(m.active[inside[0]])
        if isinstance(a, tuple):
            fragment = unpack(m, a, a_kind)[inside]
            a_row, a_column = places("a", 16, *fragment.shape[1:])
            left = np.zeros((64, depth), np.float64)
            for w in range(4):
                left[a_row + 16 * w, a_column] = fragment[32 * w : 32 * w + 32]
        else:
            left = descriptor_matrix(m, first, int(m.get(a, "b64")[inside[0]]), rows, depth, a_kind, not trans_a)
        right = descriptor_matrix(m, first, int(m.get(b, "b64")[inside[0]]), columns, depth, b_kind, not trans_b)
        signed = left.astype(c.dtype) * negate_a, right.astype(c.dtype).T * negate_b
        out[inside] = multiply(*signed, c, d_kind, op)[row, column]
    pack(m, d, d_kind, out)


def warpgroup_places(count: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column `[128, count, each]` of a wgmma accumulator: 16 rows a warp, blocks of 8 columns."""
    thread, reg, j = np.ogrid[:128, :count, :each]
    flat = reg * each + j
    warp, lane = thread // 32, thread % 32
    row = 16 * warp + lane // 4 + 8 * (flat // 2 % 2)
    rows, columns = np.broadcast_arrays(row, flat // 4 * 8 + lane % 4 * 2 + flat % 2)
    return rows, columns
