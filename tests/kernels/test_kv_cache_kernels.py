"""KvCacheScatter and KvCacheGather: which bytes change, to what, and that no others do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.dtypes import dtype
from ptxgen.idioms.kv_cache import quantise_rows
from ptxgen.kernel import KernelType
from ptxgen.kernels import KvCacheGather, KvCacheScatter
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import Trial, trial
from ptxgen.scales import dequantise

KV_DTYPES = ("f32", "f16", "bf16", "e4m3", "s8")
TARGETS = ("sm_75", "sm_80", "sm_90")
PLACES: tuple[dict[str, Any], ...] = ({}, {"indirect": True}, {"batched": True}, {"page_size": 16},
                                      {"batched": True, "page_size": 8})  # fmt: skip


def scatter(**fields: Any) -> KvCacheScatter:
    return KvCacheScatter(**{"max_len": 48, "head_dim": 40, "n_kv_heads": 3, **fields})


def exact(spec: KernelType, device: Device, **more: Any) -> Trial:
    """A trial in which every written byte is right: these kernels round as NumPy does."""
    done = trial(spec, device, limit=0.0, **more)
    return done.require()


# -- scatter -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("src_dtype", ["f32", "f16", "bf16"])
def test_rows_are_converted_and_nothing_else_changes(
    device: Device, target: str, kv_dtype: str, src_dtype: str
) -> None:
    exact(scatter(kv_dtype=kv_dtype, src_dtype=src_dtype), device, target=target, rows=2, position=17)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("kv_dtype", ["f16", "s8"])
def test_every_kind_of_position(device: Device, place: dict[str, Any], kv_dtype: str) -> None:
    spec = scatter(kv_dtype=kv_dtype, **place)
    for rows, position in ((1, 0), (1, 47), (5, 14), (48, 0)):
        exact(spec, device, rows=rows, position=position, pages=8 * rows)


@pytest.mark.parametrize("head_dim", [8, 16, 24, 64, 72, 128, 200, 256, 512])
@pytest.mark.parametrize("kv_dtype", ["f32", "s8", "e4m3"])
def test_every_shape_of_head(device: Device, head_dim: int, kv_dtype: str) -> None:
    for heads in (1, 5):
        exact(scatter(head_dim=head_dim, n_kv_heads=heads, kv_dtype=kv_dtype), device, rows=3)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("position", [-1, -(2**31), 48, 2**31 - 1])
def test_a_position_outside_the_cache_writes_nothing(device: Device, place: dict[str, Any], position: int) -> None:
    spec = scatter(**place)
    buffer = {"position": np.array([position], np.int32), "positions": np.array([position], np.int32)}
    given = {n: v for n, v in buffer.items() if n in {p.name for p in spec.params() if p.kind == "buffer"}}
    if not given:  # from the host it is refused
        with pytest.raises(SpecError, match=r"position\): must be from 0 to 47"):
            exact(spec, device, arguments={"position": np.int32(position)})
        return
    arguments = {**spec.example(np.random.default_rng(0)), **given}
    done = exact(spec, device, arguments=arguments)
    assert done.outputs["k_cache"].tobytes() == np.asarray(arguments["k_cache"]).tobytes()
    assert done.outputs["v_cache"].tobytes() == np.asarray(arguments["v_cache"]).tobytes()


def test_rows_past_the_end_of_the_cache_are_left_out(device: Device) -> None:
    spec = scatter(kv_dtype="s8", indirect=True)
    done = exact(spec, device, rows=6, position=45)
    before = spec.example(np.random.default_rng(0), rows=6, position=45)["k_cache"]
    changed = np.flatnonzero((done.outputs["k_cache"] != before).any((0, 2)))
    assert list(changed) == [45, 46, 47]


@pytest.mark.parametrize(("position", "n_kept", "changed"), [
    (9, 11, [11, 12, 13]), (9, 0, [9, 10, 11, 12, 13]), (9, 14, []), (-3, 0, [0, 1]), (45, 46, [46, 47]), (2, 47, []),
])  # fmt: skip
@pytest.mark.parametrize("place", [{}, {"page_size": 16}], ids=str)
def test_positions_that_are_kept(
    device: Device, place: dict[str, int], position: int, n_kept: int, changed: list[int]
) -> None:
    """Rows for them, and for positions below 0, write nothing."""
    spec = scatter(kv_dtype="s8", indirect=True, kept=True, **place)
    sizes = {"rows": 5, "pages": 3}
    given = spec.example(np.random.default_rng(0), **sizes)
    given |= {"position": np.array([position], np.int32), "n_kept": np.array([n_kept], np.int32)}
    done = exact(spec, device, arguments=given, **sizes)
    for name in ("k_cache", "v_cache"):
        rows = (done.outputs[name] != given[name]).any(-1)
        if place:
            rows = rows[given["page_table"]].swapaxes(0, 1).reshape(3, -1)
        assert [list(np.flatnonzero(head)) for head in rows] == [changed] * 3


@pytest.mark.parametrize("page", [-1, 4, 2**31 - 1])
def test_a_page_that_does_not_exist_writes_nothing(device: Device, page: int) -> None:
    spec = scatter(page_size=16)
    arguments = {"page_table": np.array([3, page, 0], np.int32), "n_pages": np.int32(4)}
    done = exact(spec, device, arguments=arguments, pages=4, rows=3, position=15)
    before = spec.example(np.random.default_rng(0), pages=4, rows=3, position=15)["k_cache"]
    changed = [tuple(where) for where in np.argwhere((done.outputs["k_cache"] != before).any((1, 3)))]
    assert changed == [(3, 15)]  # of positions 15, 16 and 17 the first alone lies in a page that exists


def codes(device: Device, target: str, values: np.ndarray, kv_dtype: str) -> np.ndarray:
    """What the scatter makes of these f32 values."""
    rows = -(-values.size // 64)
    padded = np.zeros((rows, 1, 64), np.float32)
    padded.reshape(-1)[: values.size] = values
    spec = KvCacheScatter(max_len=rows, head_dim=64, n_kv_heads=1, kv_dtype=kv_dtype)
    arguments = {"k": padded, "v": padded, "position": np.int32(0)}
    done = trial(spec, device, target=target, arguments=arguments, rows=rows, repeat=False)
    return done.outputs["k_cache"][0].reshape(-1)[: values.size]


@pytest.mark.parametrize("target", ["sm_75", "sm_89"])
@pytest.mark.parametrize("kv_dtype", ["e4m3", "bf16", "f16"])
def test_rounding_is_to_nearest_even_at_every_boundary(device: Device, target: str, kv_dtype: str) -> None:
    """Every 8-bit value, or a sample of the 16-bit ones: itself, the midpoints, and the floats beside those."""
    kind = dtype(kv_dtype)
    bits = np.arange(256, dtype=np.uint8) if kind.bits == 8 else np.arange(0, 65536, 37, dtype=np.uint16)
    exact_values = np.sort(bits.view(kind.numpy).astype(np.float32))
    exact_values = exact_values[np.isfinite(exact_values)]
    middle = exact_values[1:] / 2 + exact_values[:-1] / 2
    inf = np.float32(np.inf)
    values = np.concatenate([exact_values, middle, np.nextafter(middle, inf), np.nextafter(middle, -inf)])
    values = np.concatenate([values, np.float32([449, 463.9, 464, 465, 1e30, -1e30, inf, -inf, np.nan, -0.0, 1e-40])])
    got = codes(device, target, values, kv_dtype)
    with np.errstate(over="ignore"):
        want = (np.clip(values, -448, 448) if kv_dtype == "e4m3" else values).astype(kind.numpy)
    same = (got.view(bits.dtype) == want.view(bits.dtype)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), (values[~same][:5], got[~same][:5], want[~same][:5])


def test_int8_keeps_every_value_within_half_a_step(device: Device) -> None:
    rng = np.random.default_rng(1)
    sizes = np.float32([1e-5, 1e-4, 1e-3, 0.01, 0.1, 1])[:, None, None]
    rows = rng.standard_normal((6, 2, 80)).astype(np.float32) * sizes
    spec = KvCacheScatter(max_len=6, head_dim=80, n_kv_heads=2, kv_dtype="s8")
    done = exact(spec, device, arguments={"k": rows, "v": rows, "position": np.int32(0)}, rows=6)
    values, scales = done.outputs["k_cache"].swapaxes(0, 1), done.outputs["k_scales"].swapaxes(0, 1)
    step = np.repeat(scales.astype(np.float32), 32, -1)[..., :80]
    assert np.all(np.abs(dequantise(values, scales) - rows) <= 0.5001 * step)
    assert np.abs(values.astype(int)).max() <= 127


def test_int8_of_zeros_infinities_and_nan(device: Device) -> None:
    rows = np.zeros((1, 1, 96), np.float32)
    rows[0, 0, 32:64] = np.inf
    rows[0, 0, 64:] = 3.0
    rows[0, 0, 70] = np.nan
    spec = KvCacheScatter(max_len=1, head_dim=96, n_kv_heads=1, kv_dtype="s8")
    done = exact(spec, device, arguments={"k": rows, "v": rows, "position": np.int32(0)})
    assert list(done.outputs["k_scales"][0, 0, :2]) == [0.0, np.inf]
    assert not done.outputs["k_cache"][0, 0, :64].any()
    assert list(done.outputs["k_cache"][0, 0, 68:72]) == [127, 127, 0, 127]


def test_quantise_rows_rounds_scales_up() -> None:
    """So that the largest of a group stays within 127 steps, whatever its size."""
    for exponent in range(-24, 12):
        row = np.float32([[2.0**exponent * 1.37] + [0.1 * 2.0**exponent] * 31])
        values, scales = quantise_rows(row)
        assert abs(dequantise(values, scales) - row).max() <= 0.5001 * float(scales[0, 0])


# -- gather ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["to_slot", "from_slot"])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("length", [0, 1, 2, 31, 48])
def test_the_filled_positions_of_every_head_are_copied(
    device: Device, direction: str, kv_dtype: str, length: int
) -> None:
    for indirect in (False, True):
        spec = KvCacheGather(48, 40, 3, kv_dtype=kv_dtype, direction=direction, indirect=indirect)
        exact(spec, device, batch=3, slot=1, seq_len=length)


@pytest.mark.parametrize("slot", [-1, 3, 2**31 - 1])
def test_a_slot_outside_is_refused(device: Device, slot: int) -> None:
    with pytest.raises(SpecError, match=r"slot\): must be from 0 to 2"):
        exact(KvCacheGather(16, 32, 2), device, arguments={"slot": np.int32(slot)}, batch=3)


@pytest.mark.parametrize("length", [0, -1, -(2**31)])
@pytest.mark.parametrize("direction", ["to_slot", "from_slot"])
def test_an_empty_sequence_copies_nothing(device: Device, direction: str, length: int) -> None:
    spec = KvCacheGather(16, 32, 2, kv_dtype="s8", direction=direction, indirect=True)
    done = exact(spec, device, arguments={"seq_len": np.array([length], np.int32)})
    before = spec.example(np.random.default_rng(0))
    for name, after in done.outputs.items():
        assert after.tobytes() == before[name].tobytes(), name


def test_a_length_above_max_len_counts_as_max_len(device: Device) -> None:
    spec = KvCacheGather(16, 32, 2, indirect=True)
    done = exact(spec, device, seq_len=100, slot=2)
    source = spec.example(np.random.default_rng(0), seq_len=100, slot=2)
    assert np.array_equal(done.outputs["k_batched"][2], source["k_single"])


def test_a_copy_that_takes_several_passes_of_a_cta(device: Device) -> None:
    spec = KvCacheGather(36, 128, 512)  # 1024 heads of K and V: one CTA each, for 18 KB
    assert spec.blocks == 1
    exact(spec, device, batch=1, slot=0, seq_len=35, repeat=False)


def test_there_and_back_is_the_same(device: Device) -> None:
    there = KvCacheGather(48, 40, 3, kv_dtype="s8")
    back = KvCacheGather(48, 40, 3, kv_dtype="s8", direction="from_slot")
    given = there.example(np.random.default_rng(5), slot=2, seq_len=33)
    copied = exact(there, device, arguments=given).outputs
    blank = {n: np.zeros_like(v) for n, v in given.items() if n.endswith("_single")}
    returned = exact(back, device, arguments={**given, **copied, **blank}).outputs
    for name, value in returned.items():
        assert value[:, :33].tobytes() == given[name][:, :33].tobytes(), name
        assert not value[:, 33:].any(), name


# -- text and rules ----------------------------------------------------------------------------------------------------


def test_the_launch_depends_on_capacities_alone() -> None:
    for spec in (scatter(), scatter(batched=True, page_size=16)):
        assert generate(spec, "sm_90").launch.capacities == {"rows"}
    assert generate(KvCacheGather(4096, 128, 8), "sm_90").launch.capacities == frozenset()


def test_programmatic_waits_before_it_reads_and_needs_sm_90() -> None:
    text = generate(scatter(programmatic=True), "sm_90").text
    assert text.index("griddepcontrol.wait") < text.index("ld.global")
    assert generate(scatter(programmatic=True), "sm_90").launch.programmatic
    assert "griddepcontrol" not in generate(scatter(), "sm_90").text
    assert supports(scatter(programmatic=True), "sm_80").reasons == (
        "programmatic: needs sm_90 or later (got sm_80; nearest: False)",
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"head_dim": 100}, "head_dim: must be a multiple of 8 from 8 to 512 (got 100; nearest: 96 or 104)"),
        ({"head_dim": 1024}, "head_dim: must be a multiple of 8 from 8 to 512 (got 1024; nearest: 512)"),
        ({"max_len": 0}, "max_len: must be from 1 to 1073741824 (got 0; nearest: 1)"),
        ({"n_kv_heads": 0}, "n_kv_heads: must be from 1 to 1024 (got 0; nearest: 1)"),
        ({"kv_dtype": "u8"}, "kv_dtype: must be one of f32, f16, bf16, e4m3, s8 (got u8)"),
        ({"src_dtype": "s8"}, "src_dtype: must be one of f32, f16, bf16 (got s8)"),
        ({"page_size": -1}, "page_size: must be from 0 to 65536 (got -1; nearest: 0)"),
        ({"batched": True, "indirect": True}, "indirect: must be False with batched"),
    ],
)
def test_an_illegal_spec_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as error:
        scatter(**fields)
    assert reason in str(error.value)


def test_every_reason_is_given() -> None:
    with pytest.raises(SpecError) as error:
        scatter(head_dim=100, max_len=0, kv_dtype="u8")
    assert len(str(error.value).splitlines()) == 3
    with pytest.raises(SpecError, match="direction: must be one of to_slot, from_slot"):
        KvCacheGather(48, 40, 3, direction="sideways")
