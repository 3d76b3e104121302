"""Tensor maps and bulk tensor copies of the oracle (PTX ISA, "Tensors"): tile mode, one element at a time by index.

A map's 128 bytes are only a number, under which the memory keeps what it says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tests.evidence.oracle.access import combine
from tests.evidence.oracle.machine import Machine, bits, handles, typed
from tests.evidence.oracle.mbarriers import complete
from tests.evidence.oracle.memory import RANK_SHIFT, SHARED, OracleFault
from tests.evidence.oracle.program import WIDTH, Op, Place
from tests.evidence.oracle.warp import constant

NAME = b"a tensor map of the oracle: "
REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
ELEMENTS = {  # of tensormap.replace's elemtype
    0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 9: "f64", 10: "bf16",
}  # fmt: skip
PTX_TYPES = {"s8": "u8", "e4m3": "u8", "e5m2": "u8", "s16": "u16"}


@dataclass(frozen=True)
class Map:
    """Of an array at an address; all tuples in NumPy's order. `data` is what a kernel is given."""

    address: int
    kind: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    nan: bool
    data: bytes
    item: int
    pitches: tuple[int, ...] = ()  # bytes from one index to the next; none where elements lie one after the other

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of a box in shared memory."""
        return tuple(len(range(0, b, s)) for b, s in zip(self.box, self.steps, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes of a box."""
        return math.prod(self.counts) * self.item

    def elements(self, coordinates: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(byte from the array's start, whether it is in there) of all elements of the box at PTX's coordinates."""
        grids = np.meshgrid(*(c + s * np.arange(n) for c, s, n in
                              zip(coordinates[::-1], self.steps, self.counts, strict=True)), indexing="ij")  # fmt: skip
        inside = np.logical_and.reduce([(g >= 0) & (g < n) for g, n in zip(grids, self.shape, strict=True)])
        pitches = self.pitches or [self.item * math.prod(self.shape[d + 1 :]) for d in range(len(self.shape))]
        byte = np.zeros(self.counts, np.int64)
        for grid, extent, pitch in zip(grids, self.shape, pitches, strict=True):
            byte += np.clip(grid, 0, extent - 1) * pitch
        return byte.reshape(-1), inside.reshape(-1)

    def lanes(self, start: int) -> np.ndarray:
        """Byte, from `start` on, of every element of a box that begins there in shared memory."""
        linear = start + self.item * np.arange(math.prod(self.counts))
        row, chunk, rest = linear // 128, linear // 16 % 8, linear % 16
        span = {0: 1, 32: 2, 64: 4, 128: 8}[self.swizzle]  # chunks that change places
        turn = row % 8 if span == 8 else row % 4 if span == 4 else row % 2 if span == 2 else 0 * row
        return row * 128 + (chunk // span * span + (chunk % span ^ turn)) * 16 + rest - start


def make(memory, array, box, element_strides=None, swizzle=0, oob_fill="zero", l2_promotion=0) -> Map:
    """A map of an array of the oracle; promotion changes nothing."""
    from ptxgen.dtypes import dtype

    kind = dtype(array.like.dtype).name
    steps = tuple(element_strides or (1,) * array.like.ndim)
    data = (NAME + str(len(memory.maps)).encode()).ljust(128, b"\0")
    made = Map(array.pointer, PTX_TYPES.get(kind, kind), array.like.shape, tuple(box), steps, swizzle,
               oob_fill == "nan", data, array.like.itemsize)  # fmt: skip
    memory.maps[data] = made
    return made


@handles("tensormap")
def written(m: Machine, op: Op) -> None:
    """tensormap.replace, which notes a field, and tensormap.cp_fenceproxy, which makes a map of the fields."""
    if op.mods[0] == "cp_fenceproxy":
        to, source = (m.spaces.place(m.at(op.args[n], space), 16, m.active) for n, space in
                      enumerate(("global", "shared")))  # fmt: skip
        for place, fields in set(zip(to.tolist(), source.tolist(), strict=True)):  # one of every warp
            data = _made(m, m.fields[fields]).data
            m.spaces.bytes[place : place + 128] = np.frombuffer(data, np.uint8)
        return
    if op.mods[1] != "tile":
        raise OracleFault("only tile mode")
    at = m.spaces.place(m.at(op.args[0], "shared"), 16, m.active)
    ordinal = constant(op.args[1]) if len(op.args) == 3 else 0
    for place, value in zip(at, m.get(op.args[-1], op.type), strict=True):
        m.fields.setdefault(int(place), {})[op.mods[2], ordinal] = int(value)


def _made(m: Machine, fields: dict[tuple[str, int], int]) -> Map:
    """The map of these fields, which count dimensions from the innermost on."""
    kind, rank = ELEMENTS[fields["elemtype", 0]], fields["rank", 0] + 1
    if fields["interleave_layout", 0]:
        raise OracleFault("only boxes that are not interleaved")

    def outermost_first(name: str) -> tuple[int, ...]:
        return tuple(fields[name, d] for d in reversed(range(rank)))

    maps, item = m.spaces.memory.maps, WIDTH[kind] // 8
    data = (NAME + str(len(maps)).encode()).ljust(128, b"\0")
    pitches = (*(fields["global_stride", d] for d in reversed(range(rank - 1))), item)
    maps[data] = Map(
        fields["global_address", 0], kind, outermost_first("global_dim"), outermost_first("box_dim"),
        outermost_first("element_stride"), (0, 32, 64, 128)[fields["swizzle_mode", 0]], bool(fields["fill_mode", 0]),
        data, item, pitches,
    )  # fmt: skip
    return maps[data]


def _map(m: Machine, place: Place, thread: np.ndarray) -> tuple[Map, tuple[int, ...]]:
    """(the map that one thread names, its coordinates)."""
    everyone, m.active = m.active, thread
    try:
        at = m.spaces.place(m.at(Place(place.base, place.offset), ""), 16, thread)
        coordinates = tuple(int(m.get(c, "s32")[0]) for c in place.coordinates)
    finally:
        m.active = everyone
    found = m.spaces.memory.maps.get(m.spaces.bytes[at[0] : at[0] + 128].tobytes())
    if found is None or len(found.shape) != len(coordinates):
        raise OracleFault(f"no tensor map of {len(coordinates)} dimensions")
    return found, coordinates


def copy(m: Machine, op: Op) -> list[int]:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor of every active thread; the bytes of each."""
    if any(w.startswith(("im2col", "tile.", "tile::")) for w in op.mods):
        raise OracleFault("only tile mode")
    loads = any("complete_tx" in w for w in op.mods)
    shared, place = (op.args[0], op.args[1]) if loads else (op.args[1], op.args[0])
    starts, sizes = m.at(shared, "shared"), []
    for t, thread in enumerate(m.active):
        one = np.array([thread])
        map_, coordinates = _map(m, place, one)
        _begins(map_, coordinates, loads)
        if loads and any("multicast" in w for w in op.mods):
            _everywhere(m, op, map_, coordinates, t)
        elif loads:
            _load(m, map_, coordinates, int(starts[t]), one)
        else:
            _store(m, op, map_, coordinates, int(starts[t]), one)
        sizes.append(map_.box_bytes)
    return sizes


def _begins(map_: Map, coordinates: tuple[int, ...], loads: bool) -> None:
    """What a GPU ends with an illegal instruction."""
    if coordinates[0] * map_.item % 16:
        raise OracleFault(f"a box at {coordinates}, whose innermost coordinate is no multiple of 16 bytes")
    if not loads and min(coordinates) < 0:
        raise OracleFault(f"a store or reduction at {coordinates}, which is before the array")


def _everywhere(m: Machine, op: Op, map_: Map, coordinates: tuple[int, ...], t: int) -> None:
    everyone, inside = m.active, (1 << RANK_SHIFT) - 1
    start, bar = (int(m.at(o, "shared")[t]) - SHARED & inside for o in (op.args[0], op.args[2]))
    mask = int(m.get(op.args[3], "u16")[t])
    m.active = everyone[t : t + 1]
    for rank in (r for r in range(16) if mask >> r & 1):
        window = SHARED + (rank + 1 << RANK_SHIFT)
        _load(m, map_, coordinates, start + window, m.active)
        complete(m, Place(bar + window), map_.box_bytes)
    m.active = everyone


def _box(m: Machine, map_: Map, start: int, thread: np.ndarray) -> np.ndarray:
    """Positions of the elements of the box at a generic address."""
    if start % 128:
        raise OracleFault(f"a box at {start:#x}, which is no multiple of 128")
    first = m.spaces.place(np.array([start], np.uint64), 1, thread)[0]
    m.spaces.place(np.array([start + map_.box_bytes - 1], np.uint64), 1, thread)
    return first + map_.lanes(start & (1 << RANK_SHIFT) - 1)


def _array(m: Machine, map_: Map, offsets: np.ndarray, thread: np.ndarray) -> np.ndarray:
    address = (map_.address + offsets).astype(np.uint64)
    return m.spaces.place(address, map_.item, np.repeat(thread, address.size))


def _load(m: Machine, map_: Map, coordinates: tuple[int, ...], start: int, thread: np.ndarray) -> None:
    offsets, inside = map_.elements(coordinates)
    fill = np.full(map_.item, 0xFF if map_.nan else 0, np.uint8)
    fill[-1] = 0x7F if map_.nan else 0
    data = np.tile(fill, (offsets.size, 1))
    data[inside] = m.spaces.load(_array(m, map_, offsets[inside], thread), map_.item)
    m.spaces.store(_box(m, map_, start, thread), data)


def _store(m: Machine, op: Op, map_: Map, coordinates: tuple[int, ...], start: int, thread: np.ndarray) -> None:
    offsets, inside = map_.elements(coordinates)
    data = m.spaces.load(_box(m, map_, start, thread)[inside], map_.item)
    to = _array(m, map_, offsets[inside], thread)
    if op.mods[0] == "reduce":
        name = next(w for w in op.mods if w in REDUCTIONS)
        for n, at in enumerate(to):
            old, new = (typed(raw.view(f"u{map_.item}"), map_.kind).reshape(-1) for raw in
                        (m.spaces.bytes[at : at + map_.item].copy(), np.ascontiguousarray(data[n])))  # fmt: skip
            data[n] = bits(combine(name, map_.kind, old, new, None), map_.kind).view(np.uint8)
    m.spaces.store(to, data)
