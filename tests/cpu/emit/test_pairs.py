"""f32x2: two f32 in 64 bits (sm_100), held against NumPy and against the same instruction of f32."""

import numpy as np
import pytest

from ptxgen.parser import parse
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.evidence.instructions.inputs import edges, hashed
from tests.support.cpu_run import MODES, text_of

COUNT = 1024  # pairs
ROUNDINGS = ("", ".rn", ".rz", ".rm", ".rp")


def numbers(seed: int) -> np.ndarray:
    """Pairs of floats: edge cases in every order, and bits of all kinds."""
    special = np.array(edges("f32"), np.uint32)
    near = (hashed(seed + 1, 2 * COUNT) & 0x83FFFFFF | 0x3C000000).astype(np.uint32)  # exponents that meet
    drawn = hashed(seed, 2 * COUNT).astype(np.uint32)
    drawn[::2] = near[::2]
    drawn[: 16 * special.size] = np.random.default_rng(seed).permutation(np.repeat(special, 16))
    return drawn


def results(name: str, mode: str) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """(pairs, what f32 gives for each half, the operands), as bits."""
    inputs = [numbers(seed) for seed in (1, 2, 3)][: 3 if name.startswith("fma") else 2]
    pairs, singles = np.zeros(2 * COUNT, np.uint32), np.zeros(2 * COUNT, np.uint32)
    loads = "".join(
        f"add.u64 %rd9, %a{n + 2}, %at8; ld.global.b64 %rd{n}, [%rd9]; mov.b64 {{%f{2 * n}, %f{2 * n + 1}}}, %rd{n};\n"
        for n in range(len(inputs))
    )
    wide = ", ".join(f"%rd{n}" for n in range(len(inputs)))
    halves = [", ".join(f"%f{2 * n + half}" for n in range(len(inputs))) for half in (0, 1)]
    body = f"""{loads}
      {name}.f32x2 %rd8, {wide};
      {name}.f32 %f10, {halves[0]}; {name}.f32 %f11, {halves[1]};
      add.u64 %rd9, %a0, %at8; st.global.b64 [%rd9], %rd8;
      add.u64 %rd9, %a1, %at8; st.global.v2.f32 [%rd9], {{%f10, %f11}}; ret;"""
    arrays = [pairs, singles, *inputs]
    memory = Memory(track=mode == "check")
    text = text_of(body, len(arrays), target="sm_100")
    pointers = [memory.register(array, f"a{n}") for n, array in enumerate(arrays)]
    Program(parse(text, "test.ptx"), mode=mode).launch("k", COUNT // 128, 128, pointers, memory=memory)
    return pairs, singles, inputs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_each_half_is_what_f32_gives(name, mode):
    for rounding in ROUNDINGS[name == "fma" :]:
        for flush in ("", ".ftz"):
            pairs, singles, _ = results(f"{name}{rounding}{flush}", mode)
            np.testing.assert_array_equal(pairs, singles, err_msg=f"{name}{rounding}{flush}")


@pytest.mark.parametrize(("name", "of"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)])
def test_nearest_is_numpys(name, of):
    pairs, _, (a, b) = results(name, "fast")
    with np.errstate(all="ignore"):
        want = of(a.view(np.float32), b.view(np.float32))
    want = np.where(np.isnan(want), np.uint32(0x7FFFFFFF), want.view(np.uint32))
    np.testing.assert_array_equal(pairs, want)
