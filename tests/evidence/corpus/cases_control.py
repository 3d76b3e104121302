"""Cases of diverge.cu, functions.cu and memory.cu."""

from __future__ import annotations

import numpy as np

from tests.evidence.corpus.case import Close, Work, case, floats, ints, poison


@case("diverge", 3, 100)
def binary_search(rng):
    table = np.unique(ints(rng, 400, 0, 1000))
    keys = ints(rng, 290, -10, 1010)
    at = np.searchsorted(table, keys)
    hit = (at < table.size) & (table[np.minimum(at, table.size - 1)] == keys)
    expected = np.where(hit, at, -1).astype(np.int32)
    return Work([table, keys, poison(290, "i4"), np.int32(table.size), np.int32(290)], {2: expected})


def _collatz_steps(v: int) -> int:
    count = 0
    while v != 1:
        v = 3 * v + 1 if v & 1 else v >> 1
        count += 1
    return count


@case("diverge", 2, 64)
def collatz(rng):
    x = rng.integers(1, 3000, 120).astype(np.uint32)
    return Work([x, poison(120, "u4"), np.int32(120)], {1: np.array([_collatz_steps(int(v)) for v in x], np.uint32)})


def _factors(v: int) -> tuple[int, int]:
    least = next((d for d in range(2, v) if d * d <= v and v % d == 0), v)
    return least, min(31, sum(v % d == 0 for d in range(1, v + 1)))


@case("diverge", 2, 32)
def factors(rng):
    x = np.append(rng.integers(1, 400, 63), 720).astype(np.uint32)
    return Work([x, poison(128, "u4")], {1: np.array([_factors(int(v)) for v in x], np.uint32)})


def _wrap(v: int) -> int:
    return (v + 2**31) % 2**32 - 2**31


def _interpret(program: list[int], a: int, b: int) -> int:
    pc = 0
    while pc < len(program):
        op = program[pc]
        if op == 7:
            a = _wrap(3 * a + 1 if a & 1 else a >> 1)
        elif op == 8:
            pc += a & 1
        elif op == 9:
            return a
        else:
            a, b = {0: (a + b, b), 1: (a - b, b), 2: (a * 3, b), 3: (a, a ^ _wrap(b << 1)), 4: (b, a), 5: (abs(a), b),
                    6: (a, b + pc)}.get(op, (a, ~b))  # fmt: skip
            a, b = _wrap(a), _wrap(b)
        pc += 1
    return _wrap(a + b)


@case("diverge", 1, 96)
def interpreter(rng):
    program = ints(rng, (4, 24), 0, 12)
    program[:, :12][program[:, :12] == 9] = 0
    x = ints(rng, 96)
    expected = [_interpret(program[t & 3].tolist(), int(x[t]), t) for t in range(96)]
    return Work([program, x, poison(96, "i4"), np.int32(24)], {2: np.array(expected, np.int32)})


@case("diverge", 1, 128)
def named_barriers(rng):
    x = ints(rng, (7, 64))
    return Work([x, poison(448, "i4"), np.int32(7)], {1: x[:, ::-1] * 2})


@case("diverge", 2, 256)
def bitonic_sort(rng):
    x = rng.integers(0, 2**32, (2, 512), np.uint32)
    x[1, ::3] = x[1, 0]  # equal ones too
    return Work([x, poison(1024, "u4")], {1: np.sort(x)})


@case("functions", 2, 64)
def triple_product(rng):
    v = floats(rng, 128, 3, 3)
    expected = np.einsum("ni,ni->n", np.cross(v[:, 0], v[:, 1]), v[:, 2])
    return Work([v, poison(128, "f4")], {1: Close(expected, 1e-4, 1e-5)})


MIXED = np.dtype({"names": ["tag", "weight", "parts", "at"], "formats": ["i1", "f8", ("i2", 3), ("f4", 3)],
                  "offsets": [0, 8, 16, 24], "itemsize": 40})  # fmt: skip


def _weigh(m: np.void) -> float:
    parts = float(m["parts"].sum())
    return {ord("n"): -m["weight"], ord("s"): parts}.get(int(m["tag"]), parts * m["weight"] + m["at"][1])


@case("functions", 1, 48)
def mixed_struct(rng):
    items = np.zeros(49, MIXED)
    items["tag"] = rng.choice([ord(c) for c in "nsx"], 49)
    items["tag"][48] = ord("x")
    items["weight"] = rng.standard_normal(49)
    items["parts"] = rng.integers(-99, 99, (49, 3))
    items["at"] = rng.standard_normal((49, 3))
    scale, passed = items[48], items[:48].copy()
    passed["weight"] *= scale["weight"]
    passed["parts"][:, 1] += scale["parts"][2]
    expected = np.array([_weigh(m) + _weigh(scale) for m in passed])
    return Work([scale.tobytes(), items[:48].copy().view(np.uint8), poison(48, "f8")], {2: Close(expected, 1e-12)})


@case("functions", 1, 96)
def gcd_sorted(rng):
    pairs = ints(rng, (96, 2), 0, 5000)
    expected = np.gcd(pairs[:, 0], pairs[:, 1])
    return Work([pairs, poison(96, "i4"), poison(3, "f4")],
                {1: expected, 2: expected.reshape(3, 32).sum(1).astype(np.float32)})  # fmt: skip


@case("memory", 1, 40)
def local_sort(rng):
    x = ints(rng, (40, 16))
    return Work([x, poison(640, "i4")], {1: np.sort(x, axis=1)})


PARTICLE = np.dtype({"names": ["position", "id", "mass"], "formats": [("f4", 3), "i4", "f8"], "offsets": [0, 12, 16],
                     "itemsize": 24})  # fmt: skip


@case("memory", 1, 32)
def local_struct(rng):
    given = np.zeros(32, PARTICLE)
    given["position"] = rng.standard_normal((32, 3))
    given["id"] = np.arange(32)
    given["mass"] = rng.standard_normal(32)
    axis = ints(rng, 32, 0, 12)
    expected = given.copy()
    for t in range(32):
        local = [given[t].copy(), given[t ^ 1].copy()]
        for i in range(4):
            chosen, a = local[axis[t] & 1], (axis[t] + i) % 3
            chosen["position"][a] += np.float32(0.25 * i)
            chosen["mass"] *= 1.5
            chosen["id"] ^= a
        expected[t] = local[axis[t] >> 1 & 1]
    return Work([given.view(np.uint8), poison(32 * 24, "u1"), axis], {1: expected.view(np.uint8)})


@case("memory", 1, 64)
def constants(rng):
    table = np.float64([1.0, -0.5, 0.25, 3.0, -2.0, 0.125, 1e-3, 7.0])
    x, t = floats(rng, 64), np.arange(64)
    y = sum(c * x.astype(np.float64) ** i for i, c in enumerate(table)) * table[t & 7]
    iout = np.array([1, -2, 300, -32768])[t & 3] + np.array([10, 20, 30, 40])[t >> 1 & 3]
    iout += np.frombuffer(b"warp\0", np.uint8)[t % 5]
    return Work([x, poison(64, "f4"), poison(64, "i4")], {1: Close(y.astype(np.float32), 1e-4, 1e-4),
                                                          2: iout.astype(np.int32)})  # fmt: skip


@case("memory", 2, 64, shared=100 * 6)
def dynamic_shared(rng):
    x = floats(rng, 2, 100)
    return Work([x, poison(200, "f4"), np.int32(100)], {1: x[:, (np.arange(100) * 7 + 3) % 100]})


@case("memory", 1, 64)
def generic_pointers(rng):
    x = ints(rng, 70)
    expected = np.empty(64, np.int32)
    for t in range(64):
        space = t % 3
        source = [x, -x[:64], np.array([1, 2, 3, t])][space]
        expected[t] = source[t & 1 : (t & 1) + 3].sum() + [2000, 1000, 4000][space]
    return Work([x, poison(64, "i4")], {1: expected})


@case("memory", 1, 50)
def vectors(rng):
    v, b = floats(rng, 50, 4), rng.integers(0, 256, (50, 4), dtype=np.uint8)
    w = b.astype(np.int64)
    wide = np.stack([w[:, 0] << 40 | w[:, 1], -w[:, 2] * w[:, 3]], 1)
    shorts = np.stack([w[:, 0] - w[:, 1], w[:, 2] * w[:, 3]], 1).astype(np.int16)
    return Work([v, b, poison(100, "f4"), poison(100, "i8"), poison(100, "i2")],
                {2: v[:, :2] + v[:, 2:], 3: wide, 4: shorts})  # fmt: skip
