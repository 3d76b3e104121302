"""Cases of numba-cuda's texts: signatures, launches, inputs, NumPy's results. `kernels_numba.py` has the kernels."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, gamma
from typing import Any

import numpy as np

from ptxgen.testing.numba_kernel import flattened
from tests.evidence.compilers.case import case
from tests.evidence.corpus.case import Close, Work, floats, ints, poison


def kernel(
    name: str, signature: str, grid: Any, block: Any, *, shared: int = 0, least: str = "sm_75"
) -> Callable[..., Any]:
    """A case; its maker gives arguments and expectations as Python has them, which are laid out here as Numba does.

    `signature` has the arguments' types: `f4` or `f4:2` (contiguous arrays of dimensions), `=i8` a number.
    """

    def register(make: Callable[[np.random.Generator], tuple[list[Any], dict[int, Any]]]) -> None:
        def laid_out(rng: np.random.Generator) -> Work:
            args, expected = make(rng)
            flat: list[Any] = []
            places: dict[int, int] = {}
            for n, arg in enumerate(args):
                parts = flattened(arg)
                places[n] = len(flat) + (4 if isinstance(arg, np.ndarray) else 0)
                flat += parts
            return Work(flat, {places[n]: value for n, value in expected.items()})

        case("numba", name, grid, block, least=least, shared=shared, signature=signature)(laid_out)

    return register


@kernel("add", "f4 f4 f4", 2, 128)
def _(rng):
    x, y = floats(rng, 200), floats(rng, 200)
    return [x, y, poison(200, "f4")], {2: x + y}


@kernel("matrix_product", "f4:2 f4:2 f4:2", (2, 2), (8, 8))
def _(rng):
    a, b = floats(rng, 16, 16), floats(rng, 16, 16)
    return [a, b, np.zeros((16, 16), np.float32)], {2: Close(a @ b, 1e-4, 1e-4)}


@kernel("strided", "f8:2 f8:2", (2, 2), (8, 8))
def _(rng):
    x = rng.standard_normal((10, 12))
    return [x, np.zeros((12, 10))], {1: x.T * 2}


@kernel("block_sum", "i4 i4", 3, 64)
def _(rng):
    x = ints(rng, (3, 64))
    return [x.ravel(), poison(3, "i4")], {1: x.sum(1).astype(np.int32)}


@kernel("dynamic_shared", "f4 f4", 1, 32, shared=128)
def _(rng):
    x = floats(rng, 32)
    return [x, poison(32, "f4")], {1: x[::-1].copy()}


@kernel("atomics", "i4 i4 i4 i4", 2, 64)
def _(rng):
    x = ints(rng, 128, 0, 100)
    sums = np.array([*(x[x % 4 == n].sum() for n in range(4)), 128], np.int32)
    args = [x, np.zeros(5, np.int32), np.array([-1], "i4"), np.array([1000], "i4")]
    return args, {1: sums, 2: x.max(keepdims=True), 3: x.min(keepdims=True)}


@kernel("atomic_floats", "f8 f8 f8", 1, 64)
def _(rng):
    x = rng.standard_normal(64)
    want = {1: Close(np.array([x[0::2].sum(), x[1::2].sum()]), 1e-12, 1e-12), 2: x.max(keepdims=True)}
    return [x, np.zeros(2), np.full(1, -9.0)], want


@kernel("compare_and_swap", "i4 i4", 1, 8)
def _(rng):
    return [np.full(8, -1, np.int32), poison(8, "i4")], {0: np.arange(8, dtype=np.int32), 1: np.full(8, -1, np.int32)}


@kernel("mutex", "i4 i4", 5, 32)
def _(rng):
    return [np.zeros(1, np.int32), np.zeros(1, np.int32)], {0: np.zeros(1, np.int32), 1: np.array([5], np.int32)}


@kernel("warp_shuffles", "i4 i4", 1, 32)
def _(rng):
    x = ints(rng, 32)
    return [x, poison(64, "i4")], {1: np.concatenate([np.full(32, x.sum()), x[:1], x[:-1]]).astype(np.int32)}


@kernel("warp_votes", "i4 i4", 1, 32)
def _(rng):
    x = ints(rng, 32)
    u = [int(v) & 0xFFFFFFFF for v in x]
    rows = [[sum(1 << n for n in range(32) if x[n] > 0)] * 32,
            [sum(1 << m for m in range(32) if x[m] & 3 == x[n] & 3) for n in range(32)],
            [bin(v).count("1") for v in u], [32 - v.bit_length() for v in u], [int(f"{v:032b}"[::-1], 2) for v in u],
            [(v & -v).bit_length() for v in u]]  # fmt: skip
    return [x, poison(192, "i4")], {1: np.array(rows, np.int64).astype(np.uint32).view(np.int32).ravel()}


@kernel("mathematics", "f8 f8:2", 1, 32)
def _(rng):
    x = rng.uniform(-1, 1, 32)
    rows = [np.sin(x), np.exp(x), np.log(x + 2), (x + 2) ** 1.5, [erf(v) for v in x], [gamma(v + 3) for v in x],
            np.arctan2(x, 0.5), np.hypot(x, 2), np.tanh(x), np.floor(x * 3), np.fmod(x, 0.3)]  # fmt: skip
    return [x, np.zeros((11, 32))], {1: Close(np.array(rows), 1e-11, 1e-12)}


@kernel("complex_numbers", "c8 c8", 1, 32)
def _(rng):
    x = (floats(rng, 32) + 1j * floats(rng, 32)).astype(np.complex64)
    return [x, np.zeros(32, np.complex64)], {1: Close((x * x + np.abs(x)).view(np.float32), 1e-4, 1e-5)}


@kernel("local_array", "i4 i4", 1, 32)
def _(rng):
    x = ints(rng, 32)
    return [x, poison(32, "i4")], {
        1: np.array([sum(int(v) * ((int(v) + k) & 7) * k for k in range(8)) for v in x], "i4")
    }


@kernel("constants", "i4", 1, 32)
def _(rng):
    return [poison(32, "i4")], {0: np.array([2, 7, 1, 8] * 8, np.int32)}


@kernel("grid_stride", "f4 f4 =f4", 2, 32)
def _(rng):
    x = floats(rng, 150)
    return [x, poison(150, "f4"), np.float32(1.5)], {1: x * np.float32(1.5)}


@kernel("selection", "i4 f8", 1, 32)
def _(rng):
    x = ints(rng, 32)
    return [x, np.zeros(32)], {1: np.where(x > 0, 8.0, 6.0)}


@kernel("prints", "i4 i4", 1, 32)
def _(rng):
    x = ints(rng, 32)
    return [x, poison(32, "i4")], {1: x}


@kernel("mandelbrot", "i4:2", (2, 2), (8, 4))
def _(rng):
    out = np.zeros((8, 16), np.int32)
    for y in range(8):
        for x in range(16):
            c, z = complex(-2 + 3 * x / 16, -1.5 + 3 * y / 8), 0j
            while out[y, x] < 20 and z.real * z.real + z.imag * z.imag < 4:
                z = z * z + c
                out[y, x] += 1
    return [np.zeros((8, 16), np.int32)], {0: out}


@kernel("bubble_sort", "i4", 1, 32)
def _(rng):
    x = ints(rng, 32)
    return [x], {0: np.sort(x)}


@kernel("integer_division", "i4 i4 i8:2", 1, 32)
def _(rng):
    a, b = ints(rng, 32), (ints(rng, 32, 1, 9) * rng.choice([-1, 1], 32)).astype(np.int32)
    rows = np.array([a // b, a % b, a << 2, a >> 1], np.int64)
    return [a, b, np.zeros((4, 32), np.int64)], {2: rows}
