"""What a step costs by op, as a table, as JSON and as a Chrome trace; a profile changes no sequence."""

from __future__ import annotations

import json
import logging

import pytest

from ptxgen import SpecError
from ptxgen.models.memory_plan import memory_plan, plan_of
from ptxgen.models.step.decode import step_program
from ptxgen.runtime import Model
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.model.profile import op_bytes
from ptxgen.runtime.model.timing import StepTime, _parts, step_time
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec


@pytest.fixture(scope="module")
def model() -> Model:
    spec = small_spec("llama")
    return Model(ArrayFile(spec, random_weights(spec)), CpuDevice(), "f16", chunk=8)


def test_every_op_has_its_time_bytes_and_share(model: Model) -> None:
    token = model.prefill([5, 6, 7])
    profile = model.profile(token, repeats=2)
    assert (profile.length, len(profile.costs)) == (4, len(model.program().ops))
    assert sum(cost.part for cost in profile.costs) == pytest.approx(1)
    assert all(cost.us > 0 for cost in profile.costs)
    assert profile.gbs > 0.1
    for cost in (*profile.costs, *profile.by_role()):
        assert cost.share == pytest.approx(cost.bytes / (1e3 * profile.gbs * cost.us))
    assert {cost.op for cost in profile.by_role()} >= {"embed_tokens", "qkv_append", "attention", "gate_up", "lm_head"}
    told = json.loads(profile.json())
    assert told["costs"][0]["op"] == "embed_tokens"
    events = json.loads(profile.chrome_trace())["traceEvents"]
    assert [event["name"] for event in events] == [cost.op for cost in profile.costs]
    assert events[1]["ts"] == pytest.approx(events[0]["dur"])
    lines = profile.table().splitlines()
    assert lines[0].split() == ["op", "kernel", "µs", "of", "the", "step", "MB", "of", "the", "read"]
    assert lines[-1].startswith("all, at 4")
    assert model.length == 3
    before = model.forward(token)
    model.profile(77, position=1, repeats=1)  # writes another token's row there, and puts back what was
    assert (model.length, model.forward(token, 3).tobytes()) == (4, before.tobytes())
    model.rollback(3)
    assert model.forward_to_token(token) == model.forward_to_token(token, 3)


def test_a_profile_has_one_repeat_at_least(model: Model) -> None:
    for wrong in (0, -1, 1.5):
        with pytest.raises(SpecError, match=r"Model.profile: repeats must be"):
            model.profile(repeats=wrong)


def test_bytes_are_those_that_have_to_move(model: Model) -> None:
    program, spec = model.program(), model.spec
    by_name = {op.name: op for op in program.ops}
    row = spec.kv_width * 2  # of a position in f16
    q = spec.q_width * 4
    assert op_bytes(program, by_name["layers.0.attention"], 10) == 2 * q + 2 * 10 * row + 4
    assert op_bytes(program, by_name["layers.0.down_proj"], 10) == (
        program.tensors["layers.0.down_proj"].nbytes + 4 * spec.hidden + 2 * 4 * spec.dim
    )
    assert op_bytes(program, by_name["embed_tokens"], 10) < 4 * 4 * spec.dim
    sliding = step_program(small_spec("mistral"), "f32", kv_dtype="f16")  # a window of 7
    attends = next(op for op in sliding.ops if op.role == "attention")
    assert op_bytes(sliding, attends, 10) == 2 * q + 2 * 7 * row + 4


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2"])
def test_a_timed_model_says_how_long_the_parts_of_every_step_took(
    family: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = small_spec(family)
    file = ArrayFile(spec, random_weights(spec))
    plain, timed = (Model(file, CpuDevice(), "f16", chunk=4, timed=on) for on in (False, True))
    with caplog.at_level(logging.INFO, "ptxgen.model"):
        assert timed.generate([5, 6, 7, 8, 9], 3) == plain.generate([5, 6, 7, 8, 9], 3)
    assert [(one.position, one.rows) for one in timed.timings] == [(0, 4), (4, 1), (5, 1), (6, 1)]
    assert not plain.timings
    for one in timed.timings:
        head = ["head"] if one.position else []  # a chunk that another follows chooses no token
        assert list(one.parts) == ["embedding", "attention", "mlp", *head]
        assert min(one.parts.values()) > 0
        assert one.us == pytest.approx(sum(one.parts.values()))
    assert [record.getMessage() for record in caplog.records] == [str(one) for one in timed.timings]
    ops = timed.program().ops
    parts = dict(zip([op.role for op in ops], _parts(timed.program(), spec.block), strict=True))
    assert (parts["o_proj"], parts["gate_up"], parts["down_proj"], parts["lm_head"]) == (
        "attention",
        "mlp",
        "mlp",
        "head",
    )
    assert parts.get("o_proj.add", "attention") == "attention"
    assert parts.get("down_proj.add", "mlp") == "mlp"


def test_a_steps_time_is_the_sum_of_its_ops_and_a_line() -> None:
    spec = small_spec("llama", num_hidden_layers=2)
    program = step_program(spec, "f32")
    us = [float(2**n) for n in range(len(program.ops))]
    one = step_time(program, spec.block, us, 5, 1)
    roles = [op.role for op in program.ops]
    attends = sum(
        t for t, role in zip(us, roles, strict=True) if role not in ("embed_tokens", "gate_up", "down_proj", "lm_head")
    )
    feeds = sum(t for t, role in zip(us, roles, strict=True) if role in ("gate_up", "down_proj"))
    assert one.parts == {"embedding": 1.0, "attention": attends, "mlp": feeds, "head": us[-1]}
    assert one.us == sum(us)
    said = str(StepTime(7, 1, {"embedding": 1.5, "head": 2.5}))
    assert said == "position 7: 4.0 µs (embedding 1.5, head 2.5), 250000 tokens/s"
    said = str(StepTime(0, 4, {"embedding": 1.5, "head": 2.5}))
    assert said == "positions 0 to 3: 4.0 µs (embedding 1.5, head 2.5), 1000000 tokens/s"


def test_memory_on_the_device_is_the_plan(model: Model) -> None:
    plan = plan_of(model.program(), model.program("prefill", model.chunk))
    assert sum(b.nbytes for b in model.steps.weights.values()) == plan.weights
    assert model.cache.nbytes == plan.cache
    assert model.steps.arena.nbytes == plan.scratch
    assert memory_plan(model.source, "f16", model.device.target.name, model.chunk) == plan
