"""Results in digits are compared by what they add up to: a digit that is lost, or in another's place, is noticed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen import generate
from ptxgen.dtypes import bf16
from ptxgen.kernel import KernelType, Reading
from ptxgen.kernels import DigitGemm, IncrementalAttention, PackDigits, PackedGemm, PackTokens
from ptxgen.parity import Verdict, judge
from ptxgen.products.digits_bf16 import layout
from ptxgen.products.problem.readings import EXACT, digit_readings
from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.recording import Recording, record, replay
from ptxgen.runtime.tools.trial import bind_example, trial

ATTENTION: dict[str, Any] = {"max_len": 32, "head_dim": 8, "n_heads": 8, "n_kv_heads": 8, "batched": True}
PRODUCT: dict[str, Any] = {"n": 128, "k": 256, "weights": "bf16"}
# of each kind of output a spec, the addresses at which its last digit is stored, and the output
LOST: tuple[tuple[KernelType, str, tuple[str, ...], str], ...] = (
    (DigitGemm(**PRODUCT, packed_out=True), "sm_90", (r"%out_at\+1024",), "out"),
    (DigitGemm(**PRODUCT, residual=True, norm_out=True), "sm_90", (r"%digits_at\+1024",), "digits"),
    (IncrementalAttention(**ATTENTION, halves=3), "sm_80", (r"%digits_to\+1024",), "out"),
    (PackDigits(512, halves=3), "sm_90", (r"%digits_to\+1024", r"%digits_to\+2560"), "out"),
    (PackDigits(512, norm="rms", halves=3), "sm_90", (r"%digits_to\+1024",), "out"),
    (PackTokens(256, 16), "sm_80", (r"%target\+4096",), "out"),
    (PackTokens(256, 16, dtype="f16", by_row=True), "sm_80", (r"%target\+2048",), "out"),
    (PackTokens(256, 16, dtype="f16", by_row=True), "sm_80", (r"%sums_target\+256",), "sums"),
)


class Faulty(CpuDevice):
    """An executor that loads texts after `fault` has changed them."""

    def __init__(self, fault: Any) -> None:
        super().__init__(mode="fast")
        self.fault = fault

    def load(self, spec: KernelType, target: Any = None, **options: Any) -> Kernel:
        ptx = generate(spec, target)
        text = self.fault(ptx.text)
        assert text != ptx.text
        return Kernel(self, ptx, self._load(text, spec.kernel_name).function(ptx.entry))


def zeroed(text: str, addresses: tuple[str, ...], lanes: int = 32) -> str:
    """The text with zeros stored at these addresses, by the first lanes of each warp."""

    def store(match: re.Match[str]) -> str:
        zeros = "".join(f"@%gone mov.b32 {register}, 0;\n" for register in re.findall(r"%\w+", match["values"]))
        found = f"mov.u32 %own_lane, %laneid;\nsetp.lt.u32 %gone, %own_lane, {lanes};\n"
        return f"{{\n.reg .pred %gone;\n.reg .b32 %own_lane;\n{found}{zeros}}}\n" + match[0]

    for address in addresses:
        text, count = re.subn(rf"^.*st\.global\S* \[{address}\], (?P<values>.*);$", store, text, flags=re.MULTILINE)
        assert count, address
    return text


def wrong(spec: KernelType, target: str, fault: Any) -> list[Verdict]:
    return [each for each in trial(spec, Faulty(fault), target=target, repeat=False).verdicts if not each.ok]


@pytest.mark.parametrize(("spec", "target", "addresses", "name"), LOST, ids=str)
def test_the_last_digit_is_lost(spec: KernelType, target: str, addresses: tuple[str, ...], name: str) -> None:
    trial(spec, CpuDevice(), target=target, repeat=False).require()
    found = [each.name for each in wrong(spec, target, lambda text: zeroed(text, addresses))]
    assert found in ([f"{name}, digits added up", f"{name}, last digits"], [name])


@pytest.mark.parametrize(("spec", "target", "addresses", "name"), LOST, ids=str)
def test_few_lanes_lose_it_at_one_of_the_stores(
    spec: KernelType, target: str, addresses: tuple[str, ...], name: str
) -> None:
    """An eighth of the last digits, which of most is below the limit of what they add up to."""
    found = [each.name for each in wrong(spec, target, lambda text: zeroed(text, addresses[-1:], lanes=4))]
    assert found
    assert all(each.startswith(name) for each in found)


def test_one_run_of_last_digits_is_lost() -> None:
    spec = DigitGemm(n=1024, k=512, weights="bf16", packed_out=True)
    want = spec.reference(**spec.example(np.random.default_rng(0)))
    got = {"out": want["out"].copy()}
    got["out"].reshape(-1, layout.UNIT // layout.PAIR, 3, layout.DIGIT_BYTES // 2)[5, 1, 2, :8] = 0
    assert [each.name for each in judge(spec, got, want) if not each.ok] == ["out, last digits"]
    assert all(each.ok for each in judge(spec, want, got) if each.name == "out, last digits")


def test_the_last_digit_of_many_tokens_is_lost() -> None:
    spec = PackedGemm(256, 64, tokens=8, tile_rows=128, packed_out=True)
    given = spec.example(np.random.default_rng(0))
    want = spec.reference(**given)
    got = {"out": want["out"].copy()}
    got["out"][:, :, 2] = 0
    assert all(each.ok for each in judge(spec, want, want))
    assert [each.name for each in judge(spec, got, want) if not each.ok] == ["out, digits added up", "out, last digits"]


def test_digits_are_in_each_others_place() -> None:
    def swapped(text: str) -> str:
        return (
            text.replace("[%out_at+512]", "[%out_at+x]")
            .replace("[%out_at+1024]", "[%out_at+512]")
            .replace("+x]", "+1024]")
        )

    found = wrong(DigitGemm(**PRODUCT, packed_out=True), "sm_90", swapped)
    assert [each.name for each in found] == ["out, digit by digit"]


def test_the_residual_stream_beside_digits_has_the_limit_of_one_without() -> None:
    for more in ({}, {"norm_out": True}):
        spec = DigitGemm(**PRODUCT, residual=True, **more)
        given = spec.example(np.random.default_rng(0))
        want = spec.reference(**given)
        for name in ("out", *(["out_squares"] if more else [])):
            got = {**want, name: want[name] * np.float32(1 + 3e-6)}
            assert [each.name for each in judge(spec, got, want) if not each.ok] == [name]


def test_attention_has_the_limit_of_its_caches() -> None:
    limits = {}
    for kv_dtype in ("f32", "f16", "bf16"):
        spec = IncrementalAttention(**ATTENTION, kv_dtype=kv_dtype, lse=True, halves=3)
        shapes = {"out": np.zeros(layout.pack(np.zeros((2, 64), np.float32), 3).shape), "lse": np.zeros(2)}
        limits[kv_dtype] = [each.limit for name, zeros in shapes.items() for each in spec.readings(name, zeros)]
    assert limits == {"f32": [EXACT, 0, 0, 1e-5], "f16": [2e-3, 0, 0, 2e-3], "bf16": [1.6e-2, 0, 0, 1.6e-2]}


def read(values: np.ndarray) -> Iterator[Reading]:
    return digit_readings("x", values, 1, EXACT, bf16)


def test_what_nobody_wrote_must_stand_where_it_is_wanted() -> None:
    """A digit that is written where the reference has none, as one that is missing."""
    digits = layout.pack(np.random.default_rng(0).standard_normal((3, 64), np.float32), 3).reshape(1, 2, 3, -1)[0]
    holes = digits.copy()
    holes[0, :, :8] = np.nan
    for got, want in ((digits, holes), (holes, digits)):
        partly = got.copy()
        partly[0, 1:, :8] = want[0, 1:, :8]
        for found in (got, partly):
            pairs = zip(read(found), read(want), strict=True)
            assert not all(np.array_equal(a.values, b.values, equal_nan=True) for a, b in pairs)
    for each in list(read(holes))[:2]:
        assert np.isnan(each.values).any()


def test_infinities_and_nan_are_themselves() -> None:
    digits = layout.pack(np.array([[np.inf, -np.inf, np.nan, 1.0]], np.float32), 3).reshape(1, 2, 3, -1)[0]
    whole, *_ = read(digits)
    assert np.isnan(whole.values[0]).sum() == 3


def test_a_limit_in_place_of_theirs_leaves_what_is_exact() -> None:
    spec = PackDigits(256, norm="rms", halves=3)
    want = spec.reference(**spec.example(np.random.default_rng(0)))
    got = {"out": want["out"].reshape(1, 4, 2, 3, -1)[:, :, :, [0, 2, 1]].reshape(want["out"].shape)}
    assert [(each.name, each.ok, each.limit) for each in judge(spec, got, want, 0.5)] == [
        ("out, digits added up", True, 0.5), ("out, digit by digit", False, 0.0), ("out, last digits", True, 0.0)
    ]  # fmt: skip
    assert "shape" in judge(spec, {"out": want["out"][0]}, want)[0].why


def test_rows_that_are_packed_as_they_are_have_the_bytes_of_the_reference() -> None:
    for spec in (PackDigits(256, halves=1), PackDigits(256, halves=3), PackTokens(256, 16, precision="fast")):
        want = spec.reference(**spec.example(np.random.default_rng(0)))
        got = want["out"].copy()
        at = tuple(np.argwhere(np.nan_to_num(got.astype(np.float32)) != 0)[-1])
        got[at] = -got[at]
        (verdict,) = judge(spec, {"out": got}, want, 0.5)
        assert (verdict.ok, verdict.limit) == (False, 0.0)


@pytest.mark.parametrize(("spec", "target", "addresses", "output"), LOST)
def test_a_replay_notices_a_last_digit_that_is_lost(
    spec: KernelType, target: str, addresses: tuple[str, ...], output: str, tmp_path: Path
) -> None:
    """As a trial does; the one limit of a recording without its spec does not."""
    device = CpuDevice(mode="fast")
    kernel = device.load(spec, target)
    bound, _ = bind_example(kernel, spec.example(np.random.default_rng(1)), {})
    recording = Recording.load(record(kernel, bound).save(tmp_path / "launch.npz"))
    assert recording.spec() == spec
    assert all(verdict.ok for verdict in replay(recording, device))
    lost = replace(recording, text=zeroed(recording.text, addresses, lanes=4))
    wrong = [verdict.name for verdict in replay(lost, device) if not verdict.ok]
    assert wrong
    assert all(name.startswith(output) for name in wrong)
    assert all(verdict.ok for verdict in replay(replace(lost, kernel=None), device))
