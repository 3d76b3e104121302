"""A decode step in one launch: against its reference step after step, in any order of CTAs and without a finding; what
is noticed of waits that are left out; Programs that become one; a model whose tokens are the float64 model's."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from ptxgen import ExecutionError, SpecError, generate, supports, target
from ptxgen.idioms.polls import POLLS
from ptxgen.kernels import PersistentStep
from ptxgen.models.persistent.step import persistent
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.step.decode import step_program
from ptxgen.parity import compare, limit_of
from ptxgen.runtime import Model
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.model.resident import resident
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

# CTAs with rows of all products, of some and of none; all positions in one CTA, and in parts
ALIKE: dict[str, Any] = {
    "n_layers": 2, "dim": 64, "hidden": 96, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "max_len": 64,
    "vocab": 300, "ctas": 5, "shared_bytes": 100_000,
}  # fmt: skip
APART: dict[str, Any] = ALIKE | {
    "ctas": 12, "n_layers": 4, "n_heads": 6, "n_kv_heads": 1, "split_rows": 16, "bias": True, "embeds": True,
    "norm_offset": 1.0, "style": "norm", "rotary_dim": 8, "hidden": 1040, "kv_dtype": "bf16",
}  # fmt: skip
SHARED: dict[str, Any] = APART | {"group_parts": 3}  # three CTAs for the query heads of a KV head
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False}, "qwen2": {"use_sliding_window": False}, "gemma": {},
}  # fmt: skip
POSITIONS = (0, 1, 17, 50, 3, 40, 63)  # parts come and go; the last one fills the cache
FEW_POLLS = 3_000_000  # enough where others of the machine are busy, too
ALONE_POLLS = 500_000  # of a text without a fault on one thread of the host, where every run is alike: fewer
PROMPT = (3, 17, 101, 44, 9)


class Steps:
    """A spec's launches one after the other, each with another token; `text` in place of its own."""

    def __init__(self, device: Device, spec: PersistentStep, text: str = "") -> None:
        self.spec, self.rng = spec, np.random.default_rng(5)
        self.given = spec.example(self.rng, position=0)
        self.buffers = {name: device.array(value) for name, value in self.given.items()}
        ptx = generate(spec, "sm_90")
        self.bound = Kernel(device, ptx, device._load(text or ptx.text, "step").function(ptx.entry)).bind(
            **self.buffers
        )

    def step(self, position: int) -> None:
        """One launch at a position, held against the reference."""
        given = self.given
        if self.spec.embeds:
            given["token"] = self.rng.integers(self.spec.vocab, size=1).astype(np.int32)
        else:
            given["x"] = self.rng.standard_normal(self.spec.dim).astype(np.float32)
        given["position"], given["length"] = np.array([position], np.int32), np.array([position + 1], np.int32)
        for name in ("x", "token", "position", "length"):
            if name in given:
                self.buffers[name].copy_from(given[name])
        wanted = self.spec.reference(**given)
        self.bound.launch()
        for name, want in wanted.items():
            found = self.buffers[name].numpy()
            verdict = compare(name, found, want, limit_of(self.spec))
            assert verdict.ok, (position, str(verdict))
            if "_cache_" in name:
                given[name] = found


@pytest.mark.parametrize("fields", [ALIKE, APART, SHARED], ids=["alike", "apart", "shared"])
def test_step_after_step(device: Device, fields: dict[str, Any]) -> None:
    steps = Steps(device, PersistentStep(**fields))
    for position in POSITIONS:
        steps.step(position)


# Parts of a head come and go; in check mode, where those that wait cost seconds, they go.
@pytest.mark.parametrize(("mode", "positions"), [("check", (50, 3)), ("random", (17, 50, 3))], ids=["check", "random"])
@pytest.mark.parametrize("fields", [ALIKE, APART, SHARED], ids=["alike", "apart", "shared"])
def test_in_any_order_of_ctas_and_without_a_finding(
    fields: dict[str, Any], mode: str, positions: tuple[int, ...]
) -> None:
    steps = Steps(CpuDevice(mode, threads=1), PersistentStep(**fields))
    for position in positions:
        steps.step(position)


def test_logits_are_as_exact_as_f32(device: Device) -> None:
    """x is three bf16 numbers, and nothing that is published is rounded."""
    spec = PersistentStep(**ALIKE | {"kv_dtype": "f32"})
    steps = Steps(device, spec)
    for position in (0, 1, 2):
        given = dict(steps.given, position=np.array([position], np.int32))
        steps.step(position)
        given["x"] = steps.given["x"]
        want = spec.reference(**given)["logits"]
        assert np.abs(steps.buffers["logits"].numpy() - want).max() < 2e-6 * np.abs(want).max()


# waits that are left out --------------------------------------------------------------------------------------------
WAITS = ("x_comes", "head_comes", "part_comes", "unit_comes", "slot_free")


# Counters that are wrong: what a line says, and what it says then. Those of units under way are not among them: they
# bound the bytes, and order nothing.
COUNTERS = {
    "empty before all warps have read": (r"(mbarrier\.init\S* \[bells\+(?:8|24)\]), 8;", r"\1, 7;"),
    "empty never": (r"(mbarrier\.init\S* \[bells\+(?:8|24)\]), 8;", r"\1, 9;"),
    "full before the bytes have come": (
        r"mbarrier\.arrive\.expect_tx\S* _, \[%fed_bell\], %fed_bytes;",
        "mbarrier.arrive.shared::cta.b64 _, [%fed_bell], 1;",
    ),
    "phase of what is brought": (r".*xor\.b32 %fed_phase.*\n", ""),
    "phase of what is read": (r".*xor\.b32 %ring_phase.*\n", ""),
    "layers of a step": (r"add\.u32 %next_turn, %next_turn, 2;", "add.u32 %next_turn, %next_turn, 3;"),
    "layers within a step": (r".*%slots_turn mov\.b64.*\n", ""),
    "slot that is written": (r"add\.u32 %slot_index, %turn_number, 2;", "add.u32 %slot_index, %turn_number, 1;"),
    "CTAs that have left": (r"setp\.eq\.u32 %is_last, %ticket, 8;", "setp.eq.u32 %is_last, %ticket, 7;"),
    "tickets": (r"(atom\.acq_rel\S* %ticket, \[%exchange\+4\]), 8;", r"\1, 7;"),
    "best of the step before": (r".*st\.global\.u64 \[%exchange\+8\], 0;\n", ""),
    "parts of the step before": (r".*st\.relaxed\S* \[%part_clear\], 0;\n", ""),
    "sums of two batches": (r"mov\.u32 %to_other_sums, 12288;", "mov.u32 %to_other_sums, 0;"),
    "squares of two ops": (r"mov\.u32 %to_other_squares, 32;", "mov.u32 %to_other_squares, 0;"),
}  # fmt: skip


def without(text: str, wait: str) -> str:
    """The text without a wait: the branch that repeats it, and what tries an mbarrier (it waits by itself here)."""
    before, label, after = text.partition(f"${wait}:\n")
    body, branch, rest = re.split(rf"(?m)(^    @!?%\w+ bra \${wait};\n)", after, maxsplit=1)
    assert label
    assert branch
    return before + label + re.sub(r"(?m)^.*mbarrier\.try_wait.*\n", "", body) + rest


# A barrier of the CTA, or a fence: as many as the text has. Lanes of a warp run together here, so that what orders them
# alone (`bar.warp.sync`) is not missed.
BARRIERS = 8
_BARRIER = re.compile(r"(?m)^    (?:bar\.sync|fence).*\n")
# Values that are never cleared, or never published
UNWRITTEN = ("row_clear", "row_out", "head_clear", "head_to")
FAULTS = (*WAITS, *(f"barrier {n}" for n in range(BARRIERS)), *UNWRITTEN, *COUNTERS)


@cache
def sound() -> tuple[PersistentStep, str]:
    """What is spoiled, and its text."""
    spec = PersistentStep(**ALIKE | {"ctas": 9, "n_kv_heads": 1, "split_rows": 16, "vocab": 40, "hidden": 1040})
    return spec, generate(spec, "sm_90").text


def spoiled(text: str, fault: str) -> str:
    """The text with one of `FAULTS`."""
    if fault in WAITS:
        return without(text, fault)
    if fault in UNWRITTEN:
        return re.sub(rf"(?m)^.*st\.relaxed\.gpu\.global\.b32 \[%{fault}\b.*\n", "", text)
    if fault in COUNTERS:
        return re.sub(*COUNTERS[fault], text)
    barrier = [*_BARRIER.finditer(text)][int(fault.removeprefix("barrier "))]
    return text[: barrier.start()] + text[barrier.end() :]


def noticed(spec: PersistentStep, text: str) -> bool:
    """Whether check mode or a random order has anything against a text."""
    quick = text.replace(f"%polls_left, {POLLS};", f"%polls_left, {ALONE_POLLS};")
    for mode, seed in (("random", 1), ("check", 0), ("random", 2)):
        try:
            steps = Steps(CpuDevice(mode, seed, threads=1), spec, quick)
            for position in (20, 40, 41, 42):
                steps.step(position)
        except (ExecutionError, AssertionError):
            return True
    return False


def test_nothing_is_amiss_where_nothing_is_left_out() -> None:
    spec, text = sound()
    assert len(_BARRIER.findall(text)) == BARRIERS
    assert not noticed(spec, text)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_left_out_or_wrong_is_noticed(fault: str) -> None:
    spec, text = sound()
    changed = spoiled(text, fault)
    assert changed != text
    assert noticed(spec, changed)


def test_a_value_that_never_comes_ends_in_a_trap() -> None:
    spec = PersistentStep(**ALIKE)
    text = re.sub(r"(?m)^.*st\.relaxed\.gpu\.global\.b32 \[%row_out\],.*\n", "", generate(spec, "sm_90").text)
    with pytest.raises(ExecutionError, match="trap"):
        Steps(CpuDevice(), spec, text.replace(f"%polls_left, {POLLS};", f"%polls_left, {FEW_POLLS};")).step(5)


# Programs -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("mistral", {}, "layers.0.attention has a window of 7 positions, which"),
        ("llama", {}, "layers.0.o_proj has a bias, which"),
        ("llama", {"attention_bias": False, "mlp_bias": True}, "layers.0 has an MLP with a bias, which"),
        ("qwen3", {}, "layers.0 has norms of q and k, which"),
        ("olmo2", {}, "layers.0 has norms of q and k and norms behind attention and the MLP, which"),
        ("smollm3", {}, "layers.1 has q and k that do not rotate, which"),
        ("gemma2", {}, "the model has a cap of logits, which"),
        ("gemma", {"num_key_value_heads": 1, "head_dim": 24}, "layers.0 has q, k and v that are not one matrix, which"),
        ("gemma", {"head_dim": 80}, "head_dim: must be one of 16, 32, 64, 128, 256 \\(got 80\\)"),
        ("gemma", {"num_attention_heads": 16}, "num_attention_heads: at most 6 of a KV head have registers .got 8."),
        ("gemma", {"num_attention_heads": 12, "num_key_value_heads": 12},
         "multiprocessors of the device: must be at least n_kv_heads · group_parts, 12 .got 8."),
        ("gemma", {"intermediate_size": 100}, "intermediate_size: must be a multiple of 16 from 16 to 65536 .got 100;"),
        ("gemma", {"num_hidden_layers": 70}, "num_hidden_layers: must be at most 61, as a launch passes 500 param"),
        ("gemma", {"hidden_size": 8192},
         "multiprocessors of the device: must be at least 32 for the rows of o .got 8."),
    ],
)  # fmt: skip
def test_what_a_persistent_step_lacks_is_refused_by_name(family: str, changes: dict[str, Any], reason: str) -> None:
    program = step_program(small_spec(family, **changes), "bf16", kv_dtype="f16", target="sm_90")
    with pytest.raises(SpecError, match=f"^Model.persistent: {reason}.*; without it a step is a graph of launches$"):
        persistent(program, 8)


def test_a_bias_of_the_logits_is_refused_by_name() -> None:
    program = step_program(replace(small_spec("gemma"), head_bias=True), "bf16", kv_dtype="f16", target="sm_90")
    with pytest.raises(SpecError, match=r"^Model.persistent: lm_head has a bias, which a persistent step lacks;"):
        persistent(program, 8)


@pytest.mark.parametrize(
    ("heads", "wanted"), [((12, 2, 128), (3, 64)), ((32, 8, 64), (2, 256)), ((32, 8, 128), (1, 256))]
)
def test_shares_are_those_that_were_measured_to_be_faster(heads: tuple[int, int, int], wanted: tuple[int, int]) -> None:
    names = ("num_attention_heads", "num_key_value_heads", "head_dim")
    spec = small_spec("gemma", **dict(zip(names, heads, strict=True)))
    made = persistent(step_program(spec, "bf16", kv_dtype="f16", target="sm_90"), 132).ops[-1].spec
    assert isinstance(made, PersistentStep)
    assert (made.group_parts, made.split_rows) == wanted


def test_shared_memory_is_what_the_target_has() -> None:
    most = PersistentStep(**ALIKE | {"shared_bytes": 232448})
    assert supports(most, "sm_100")
    said = "shared_bytes: must be at most 101376 on sm_120 (got 232448; nearest: 101376)"
    assert supports(most, "sm_120").reasons == (said,)
    assert generate(replace(most, shared_bytes=101376), "sm_120").launch.shared < 101376
    with pytest.raises(SpecError, match=r"shared_bytes: must be at least \d+ for two slots of weights \(got 20000\)"):
        replace(most, shared_bytes=20000)


def test_a_model_asks_for_what_its_device_has() -> None:
    device = CpuDevice()
    spec = small_spec("llama", attention_bias=False)
    program = step_program(spec, "bf16", "decode", kv_dtype="f16", target="sm_90")
    for where, most in (("sm_90", 232448), ("sm_120", 101376)):
        device.target = target(where)
        made = resident(device, program).ops[-1].spec
        assert isinstance(made, PersistentStep)
        assert made.shared_bytes == most
        assert supports(made, where)


def test_another_format_is_refused() -> None:
    said = {
        ("q8_0", "f16"): r"Model.persistent: weights must be in bf16 \(got q8_0\); without it",
        ("f16", "e4m3"): r"Model.persistent: weights must be in bf16 \(got f16\)",
        ("bf16", "e4m3"): r"Model.kv_dtype: must be one of f32, f16, bf16 \(got e4m3\) for a persistent step$",
    }
    for (weights, kv_dtype), reason in said.items():
        program = step_program(small_spec("gemma"), weights, kv_dtype=kv_dtype, target="sm_90")
        with pytest.raises(SpecError, match=f"^{reason}"):
            persistent(program, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_models_tokens_are_those_of_the_float64_model(device: Device, family: str) -> None:
    spec = small_spec(family, **FAMILIES[family])
    file = ArrayFile(spec, random_weights(spec), "bf16")
    model = Model(file, device, "f16", chunk=8, persistent=True)
    assert model.steps.decode.program.ops[-1].spec.kernel_name == "persistent_step"
    reference = ReferenceModel(spec, file.values(), "f16")
    logits = [model.forward(token) for token in PROMPT]
    np.testing.assert_allclose(logits, reference.forward(PROMPT), rtol=0, atol=3e-2)
    reference.rollback(0)
    assert model.generate(PROMPT, 8) == [*PROMPT, *reference.generate(PROMPT, 8)]
