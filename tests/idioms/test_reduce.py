"""Reductions over warp, CTA and cluster: every thread has the same, and the right, result."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from ptxgen.builder import Builder
from ptxgen.dtypes import DType, f32, u32, u64
from ptxgen.idioms.reduce import over_cta, over_lanes, over_warp
from ptxgen.idioms.sampling.order import largest_of_warp, ordered_bits, ordered_key
from ptxgen.launch import buffer
from tests.support.cpu_run import MODES
from tests.support.idiom_kernel import Idiom, run_idiom, text_of

TARGETS = ("sm_75", "sm_80", "sm_90")
NUMPY = {"add": np.add, "min": np.minimum, "max": np.maximum}


def locate(b: Builder, dtype: DType, cluster: int = 1) -> None:
    """Fragment `locate`: %thread, %at the address of the thread's own element, %value what it holds."""
    with b.fragment("locate"):
        thread = b.op("mov.u32", "thread", b.special("tid.x"))
        place = b.op("mov.u32", "place", thread)
        if cluster > 1:
            rank = b.op("mov.u32", "rank", b.special("ctaid.x"))
            b.op("mad.lo.u32", place, rank, b.spec.launch(b.target).threads, thread)
        at = b.op("mad.wide.u32", "at", place, dtype.bytes, b.ld_param("x"))
        b.op(f"ld.global.{dtype.name}", "value", at[0])


def store(b: Builder, dtype: DType) -> None:
    with b.fragment("store"):
        b.op(f"st.global.{dtype.name}", b.registers["at"][0], b.registers["value"])


def numbers(dtype: DType, count: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    if dtype.is_float:
        return rng.standard_normal(count).astype(np.float32)
    return rng.integers(0, 1 << (20 if dtype.bits == 32 else 50), count).astype(dtype.numpy)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [f32, u32, u64])
@pytest.mark.parametrize("word", NUMPY)
def test_a_warp(word: str, dtype: DType, target: str) -> None:
    def code(b: Builder) -> None:
        locate(b, dtype)
        with b.fragment("combine"):
            over_warp(b, f"{word}.{dtype.name}", b.registers["value"])
        store(b, dtype)

    x = numbers(dtype, 32)
    spec = Idiom((buffer("x", dtype, 32, access="inout"),), code=code)
    (out,) = run_idiom(spec, "{{ locate }}\n{{ combine }}\n{{ store }}", x, target=target)
    assert len({value.tobytes() for value in out}) == 1
    assert out[0] == pytest.approx(NUMPY[word].reduce(x), rel=1e-6)


@pytest.mark.parametrize("distances", [(1, 2), (2, 1), (4, 8, 16)])
def test_groups_of_lanes(distances: tuple[int, ...]) -> None:
    def code(b: Builder) -> None:
        locate(b, u32)
        with b.fragment("combine"):
            over_lanes(b, "add.u32", b.registers["value"], distances, b.reg("mine", "u32"))
        store(b, u32)

    x = numbers(u32, 32)
    spec = Idiom((buffer("x", u32, 32, access="inout"),), code=code)
    (out,) = run_idiom(spec, "{{ locate }}\n{{ combine }}\n{{ store }}", x)
    mask = sum(distances)
    want = [sum(int(x[other]) for other in range(32) if (other ^ lane) & ~mask == 0) for lane in range(32)]
    assert out.tolist() == want


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [f32, u32, u64])
@pytest.mark.parametrize("warps", [1, 2, 3, 5, 8, 32])
def test_a_cta_of_any_number_of_warps(warps: int, dtype: DType, mode: str) -> None:
    def code(b: Builder) -> None:
        locate(b, dtype)
        over_cta(b, "total", f"add.{dtype.name}", [b.registers["value"]], b.registers["thread"], warps)
        store(b, dtype)

    x = numbers(dtype, 32 * warps)
    spec = Idiom((buffer("x", dtype, 32 * warps, access="inout"),), 32 * warps, code=code)
    (out,) = run_idiom(spec, "{{ locate }}\n{{ reduce(total) }}\n{{ store }}", x, mode=mode)
    assert len({value.tobytes() for value in out}) == 1
    assert out[0] == pytest.approx(x.astype(np.float64 if dtype.is_float else dtype.numpy).sum(), rel=1e-5)


CLUSTER_LOOP = """{{ cluster_arrive() }}
{{ locate }}
{{ start }}
{{ cluster_wait() }}
{% call loop("turns", again) %}
{{ reduce(total) }}
{{ barrier() }}
{{ next }}
{% endcall %}
{{ store }}"""


def _in_a_loop(b: Builder, cluster: int, repeats: bool) -> None:
    locate(b, u64, cluster)
    with b.fragment("start"):
        b.op("mov.u32", "turn", 0)
    value, thread = b.registers["value"], b.registers["thread"]
    over_cta(b, "total", "add.u64", [value], thread, 2, cluster=cluster, repeats=repeats)
    with b.fragment("next"):
        b.op("add.u32", b.registers["turn"], b.registers["turn"], 1)
        b.op("setp.lt.u32", "again", b.registers["turn"], 2)
    store(b, u64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_a_cluster_again_and_again(cluster: int, mode: str) -> None:
    """Twice in a loop: nobody overwrites parts that others still read."""
    x = numbers(u64, 64 * cluster)
    params = (buffer("x", u64, 64 * cluster, access="inout"),)
    spec = Idiom(params, 64, cluster, code=lambda b: _in_a_loop(b, cluster, True))
    (out,) = run_idiom(spec, CLUSTER_LOOP, x, mode=mode)
    assert set(out.tolist()) == {int(x.sum()) * 64 * cluster % (1 << 64)}


def test_without_the_clusters_barrier_of_a_loop_a_random_order_gives_another_result() -> None:
    x = numbers(u64, 256)
    want = int(x.sum()) * 256 % (1 << 64)
    params = (buffer("x", u64, 256, access="inout"),)
    for repeats in (True, False):
        spec = Idiom(params, 64, 4, code=partial(_in_a_loop, cluster=4, repeats=repeats))
        outs = [run_idiom(spec, CLUSTER_LOOP, x, mode="random", seed=seed)[0] for seed in range(1, 4)]
        assert all(set(out.tolist()) == {want} for out in outs) == repeats


def test_without_the_barrier_of_a_loop_check_mode_finds_the_race() -> None:
    def code(b: Builder) -> None:
        locate(b, u32)
        with b.fragment("start"):
            b.op("mov.u32", "turn", 0)
        over_cta(b, "total", "add.u32", [b.registers["value"]], b.registers["thread"], 4)
        with b.fragment("next"):
            b.op("add.u32", b.registers["turn"], b.registers["turn"], 1)
            b.op("setp.lt.u32", "again", b.registers["turn"], 2)
        store(b, u32)

    body = '{{ locate }}\n{{ start }}\n{% call loop("turns", again) %}\n{{ reduce(total) }}\n{{ next }}\n{% endcall %}'
    spec = Idiom((buffer("x", u32, 128, access="inout"),), 128, code=code)
    with pytest.raises(Exception, match="race"):
        run_idiom(spec, body + "\n{{ store }}", numbers(u32, 128))


def test_one_warp_needs_no_barrier_and_no_shared_memory() -> None:
    def code(b: Builder) -> None:
        locate(b, f32)
        over_cta(b, "total", "add.f32", [b.registers["value"]], b.registers["thread"], 1)
        store(b, f32)

    spec = Idiom((buffer("x", f32, 32, access="inout"),), code=code)
    text = text_of(spec, "{{ locate }}\n{{ reduce(total) }}\n{{ store }}")
    assert "bar.sync" not in text
    assert ".shared" not in text


@pytest.mark.parametrize("target", TARGETS)
def test_the_largest_of_a_warp_and_the_way_back_from_its_key(target: str) -> None:
    def code(b: Builder) -> None:
        locate(b, f32)
        with b.fragment("combine"):
            key, value = b.reg("key", "u32"), b.registers["value"]
            ordered_key(b, key, value)
            low = b.op("not.b32", "low", b.registers["thread"])
            largest_of_warp(b, key, low)
            b.op("mov.b32", value, ordered_bits(b, "bits", key))
        store(b, f32)

    spec = Idiom((buffer("x", f32, 32, access="inout"),), code=code)
    for x in (numbers(f32, 32), -np.abs(numbers(f32, 32)), np.full(32, -np.inf, np.float32)):
        (out,) = run_idiom(spec, "{{ locate }}\n{{ combine }}\n{{ store }}", x, target=target)
        assert set(out.tolist()) == {float(x.max())}
