"""wmma of s4, u4 and b1: whole products in memory against NumPy, with a pitch of its own and with the tile's."""

import numpy as np
import pytest

from ptxgen.runtime import open_device

FORMS = {  # each: (shape, bits, what stands in the opcode, the product of a row and a column)
    "s4": ("m8n8k32", 4, "", lambda a, b: a @ b.T),
    "u4": ("m8n8k32", 4, "", lambda a, b: a @ b.T),
    "b1.xor": ("m8n8k128", 1, ".xor.popc", lambda a, b: (a[:, None] ^ b[None]).sum(2)),
    "b1.and": ("m8n8k128", 1, ".and.popc", lambda a, b: (a[:, None] & b[None]).sum(2)),
}


def packed(numbers: np.ndarray, bits: int, pitch: int) -> np.ndarray:
    """Rows of `pitch` elements, the first in the lowest bits."""
    wide = np.zeros((8, pitch), np.uint64)
    wide[:, : numbers.shape[1]] = numbers.astype(np.int64) & ((1 << bits) - 1)
    each = 32 // bits
    words = (wide.reshape(8, -1, each) << (np.arange(each, dtype=np.uint64) * np.uint64(bits))).sum(2)
    return words.astype(np.uint32)


@pytest.mark.parametrize("pitched", [False, True])
@pytest.mark.parametrize("mode", ["fast", "check"])
@pytest.mark.parametrize("form", FORMS)
def test_a_product_is_numpys(form, mode, pitched):
    shape, bits, operation, product = FORMS[form]
    kind = form[:2]
    depth = 128 // bits
    low, high = {"s4": (-8, 8), "u4": (0, 16), "b1": (0, 2)}[kind]
    rng = np.random.default_rng(4)
    a, b = (rng.integers(low, high, (8, depth)) for _ in range(2))
    c = rng.integers(-1000, 1000, (8, 8)).astype(np.int32)
    pitch = 2 * depth if pitched else depth
    given = f", {pitch}" if pitched else ""
    text = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{{
  .reg .b32 %r<8>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u64 %rd4, [d];
  wmma.load.a.sync.aligned.row.{shape}.global.{kind} {{%r1}}, [%rd1]{given};
  wmma.load.b.sync.aligned.col.{shape}.global.{kind} {{%r2}}, [%rd2]{given};
  wmma.load.c.sync.aligned.row.{shape}.global.s32 {{%r3, %r4}}, [%rd3];
  wmma.mma{operation}.sync.aligned.row.col.{shape}.s32.{kind}.{kind}.s32 {{%r5, %r6}}, {{%r1}}, {{%r2}}, {{%r3, %r4}};
  wmma.store.d.sync.aligned.row.{shape}.global.s32 [%rd4], {{%r5, %r6}};
  ret;
}}
"""
    device = open_device("cpu", mode=mode)
    out = device.zeros((8, 8), "s32")
    device.module(text)["k"].launch(1, 32, [packed(a, bits, pitch), packed(b, bits, pitch), c, out])
    np.testing.assert_array_equal(out.numpy(), product(a, b) + c)
