"""ArgMax: which index wins, whatever the values, the row length and the way the row is shared out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptxgen import SpecError, generate, supports
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.kernels import ArgMax
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial

INF, NAN = np.inf, np.nan
# Row lengths around a vector, a warp, a pass of a CTA, a second CTA; odd ones are not aligned.
LENGTHS = (1, 2, 3, 4, 7, 8, 31, 33, 255, 1000, 2047, 2048, 2049, 4096, 4104, 5003)


def winner(device: Device, x: Any, dtype: str = "f32", target: str | None = None) -> list[int]:
    rows = np.atleast_2d(np.asarray(x, np.float32)).astype(to_dtype(dtype).numpy)
    spec = ArgMax(rows.shape[1], dtype, with_value=True)
    done = trial(spec, device, target=target, arguments={"x": rows}, rows=rows.shape[0]).require()
    return list(map(int, done.outputs["out"]))


@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_largest_wins_in_every_length(device: Device, n: int, dtype: str, target: str) -> None:
    rng = np.random.default_rng(n)
    trial(ArgMax(n, dtype, with_value=True), device, target=target, rows=3, seed=n).require()
    for where in {0, n // 2, n - 1}:
        x = rng.uniform(-1, 1, n).astype(np.float32)
        x[where] = 2
        assert winner(device, x, dtype, target) == [where]


@pytest.mark.parametrize(
    ("x", "index"),
    [
        ([5, 5, 5, 5], 0),
        ([1, 5, 2, 5], 1),
        ([-3, -2, -2, -9], 1),
        ([-0.0, 0.0, -1, -1], 0),
        ([0.0, -0.0, -1, -1], 0),
        ([-1, -0.0, 0.0, -1], 1),
        ([-INF, -INF, -INF, -INF], 0),
        ([-INF, -INF, -3e38, -INF], 2),
        ([1, INF, INF, 2], 1),
        ([1, NAN, INF, 2], 1),
        ([INF, 3, NAN, NAN], 2),
        ([NAN, NAN, NAN, NAN], 0),
        ([-1e-45, -2e-45, 0, 1e-45], 3),
        ([-1e-45, -2e-45, -3e-45, -INF], 0),
        ([-NAN, 1, NAN, INF], 0),
    ],
)
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_ties_zeros_infinities_and_nan(device: Device, x: list[float], index: int, target: str) -> None:
    assert winner(device, x, target=target) == [index]
    if 1e-45 not in np.abs(x):  # halves have no such value
        assert winner(device, x, "bf16", target) == [index]


@pytest.mark.parametrize("value", [1.0, -1.0, INF, -INF, NAN])
def test_the_first_of_equals_wins_across_threads_warps_and_ctas(device: Device, value: float) -> None:
    n = 9000
    assert ArgMax(n).splits > 1
    x = np.full((4, n), -INF, np.float32)
    firsts = (0, 3, 2047, 7001)
    for row, first in zip(x, firsts, strict=True):
        row[first::7] = value
    want = list(firsts) if value != -INF else [0] * 4
    assert winner(device, x) == want


def test_a_negative_nan_counts_as_nan(device: Device) -> None:
    x = np.full((1, 64), 7, np.float32)
    x.view(np.uint32)[0, 40] = 0xFFC00001
    x.view(np.uint32)[0, 50] = 0x7FFFFFFF
    assert winner(device, x) == [40]


def test_a_row_longer_than_one_pass_of_all_its_ctas(device: Device) -> None:
    spec = ArgMax(300_000, "f16", with_value=True)
    assert spec.share.passes == 2
    for where in (0, 262_143, 262_144, 299_999):
        x = np.zeros((1, spec.n), np.float16)
        x[0, where] = 1
        out = trial(spec, device, arguments={"x": x}, repeat=False).require().outputs["out"]
        assert out.tolist() == [where]


def test_workspaces_are_left_zero_so_that_a_graph_can_replay(device: Device) -> None:
    spec = ArgMax(5000)
    kernel = device.load(spec)
    best, arrivals = device.zeros((2,), "u64"), device.zeros((2,), "u32")
    x = device.array(np.random.default_rng(0).standard_normal((2, 5000)).astype(np.float32))
    out = device.empty((2,), "s32")
    bound = kernel.bind(x=x, out=out, best=best, arrivals=arrivals)
    for shift in range(3):
        rows = np.roll(x.numpy(), shift, 1)
        x.copy_from(rows)
        bound.launch()
        device.synchronize()
        assert out.numpy().tolist() == rows.argmax(1).tolist()
        assert not best.numpy().any()
        assert not arrivals.numpy().any()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(width=16) | st.sampled_from([0.0, -0.0, INF, -INF, NAN, 1.0]), min_size=1, max_size=70))
def test_any_row_as_numpy_has_it(x: list[float]) -> None:
    """NumPy's argmax has torch's rules: the first NaN, else the first of the largest."""
    assert winner(_CPU, x, "f16") == [int(np.argmax(np.float16(x)))]


_CPU = open_device("cpu")


# -- text and rules ----------------------------------------------------------------------------------------------------


def test_one_launch_about_a_cta_a_multiprocessor() -> None:
    spec = ArgMax(128_256)
    assert (spec.splits, spec.share.passes, spec.share.vector) == (63, 1, 4)
    ptx = generate(spec, "sm_90")
    assert ptx.launch.at({"rows": 2}).grid == (2, 63, 1)
    assert ptx.workspace_bytes(rows=2) == 2 * (8 + 4)
    assert ArgMax(1000).splits == 1
    assert generate(ArgMax(1000), "sm_90").workspace_bytes(rows=2) == 0


def test_odd_rows_ask_for_less_alignment() -> None:
    assert [ArgMax(n, "f16").params()[0].align for n in (8, 12, 6, 5)] == [16, 8, 4, 2]


def test_programmatic_waits_first() -> None:
    text = generate(ArgMax(1000, programmatic=True), "sm_90").text
    assert text.index("griddepcontrol.wait") < text.index("ld.global")
    assert not supports(ArgMax(1000, programmatic=True), "sm_86")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 0}, "n: must be from 1 to"),
        ({"n": 2**31}, "n: must be from 1 to"),
        ({"n": 10, "dtype": "s32"}, "dtype: must be one of f32, f16, bf16 (got s32)"),
    ],
)
def test_an_illegal_spec_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as error:
        ArgMax(**fields)
    assert reason in str(error.value)
