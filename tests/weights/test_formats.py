"""Weight formats: reversible, of the stated size, and what gguf and ml_dtypes make of the same bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.weights import weight_format, weight_formats
from ptxgen.weights.blocks import join_scales
from ptxgen.weights.order import interleave, separate

NAMES = tuple(weight_formats())
GGUF = {
    "q8_0": "Q8_0",
    "q4_0": "Q4_0",
    "q4_1": "Q4_1",
    "q5_0": "Q5_0",
    "q5_1": "Q5_1",
    "q4_k": "Q4_K",
    "q5_k": "Q5_K",
    "q6_k": "Q6_K",
}
BLOCK_BYTES = {
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
}
NARROW = tuple((name, each.tile_k) for name in NAMES for each in weight_format(name).narrow)
SHAPES = ((1, 256), (16, 512), (37, 768), (130, 256), (300, 1280))


def random_blocks(name: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Raw blocks of random bits, their f16 scales finite."""
    size, nbytes = BLOCK_BYTES[name]
    blocks = np.random.default_rng(seed).integers(0, 256, (rows, cols // size, nbytes), np.uint8)
    scales = {
        "q6_k": slice(208, 210),
        "q4_k": slice(0, 4),
        "q5_k": slice(0, 4),
        "q4_1": slice(0, 4),
        "q5_1": slice(0, 4),
    }.get(name, slice(0, 2))
    values = np.random.default_rng(seed).standard_normal((rows, cols // size, (scales.stop - scales.start) // 2))
    blocks[:, :, scales] = values.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def source_of(name: str, rows: int, cols: int) -> dict[str, np.ndarray]:
    if name in GGUF:
        return {"blocks": random_blocks(name, rows, cols)}
    return weight_format(name).quantise(np.random.default_rng(1).standard_normal((rows, cols), np.float32))


def test_the_formats_that_there_are() -> None:
    assert set(NAMES) == {
        "f32", "f16", "bf16", "e4m3", "e4m3_channel", "e4m3_block", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1",
        "q4_k", "q5_k", "q6_k", "int4_g32", "int4_g64", "int4_g128",
    }  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_packing_is_reversible_and_of_the_stated_size(name: str, shape: tuple[int, int]) -> None:
    kind = weight_format(name)
    source = source_of(name, *shape)
    packed = kind.pack(source, *shape)
    assert packed.dtype == np.uint8
    assert packed.shape == (kind.nbytes(*shape),)
    again = kind.unpack(packed, *shape)
    assert again.keys() == source.keys()
    for field, value in source.items():
        assert again[field].dtype == value.dtype, field
        assert again[field].tobytes() == np.ascontiguousarray(value).tobytes(), field
    assert kind.pack(again, *shape).tobytes() == packed.tobytes()


@pytest.mark.parametrize("name", ["q4_k", "q5_k"])
@pytest.mark.parametrize(("scales", "mins"), [(0, 3), (3, 0), (0, 0)])
def test_a_factor_of_zeros_alone_is_packed_as_zero(name: str, scales: int, mins: int) -> None:
    """The values are the same; one that is infinite stays, as they are not numbers then."""
    kind, shape = weight_format(name), (16, 512)
    blocks = random_blocks(name, *shape)
    rows = blocks.reshape(16, 2, -1)
    rows[..., :4] = np.array([0.5, 0.25], np.float16).view(np.uint8)
    rows[0, 0, :4] = np.array([np.inf, np.inf], np.float16).view(np.uint8)
    each = [np.full((16, 2, 8), value, np.uint8) for value in (scales, mins)]
    rows[..., 4:16] = join_scales(*each)
    again = kind.unpack(kind.pack({"blocks": blocks}, *shape), *shape)
    factors = again["blocks"].reshape(16, 2, -1)[..., :4].copy().view(np.float16)
    assert (factors[1:] == (0.5 * (scales > 0), 0.25 * (mins > 0))).all()
    assert np.isinf(factors[0, 0]).all()
    with np.errstate(invalid="ignore"):
        want, found = (kind.dequantise(source, *shape) for source in ({"blocks": blocks}, again))
    assert np.array_equal(found, want, equal_nan=True)


@pytest.mark.parametrize(("name", "tile_k"), NARROW)
def test_narrow_tiles_are_reversible_and_exact(name: str, tile_k: int) -> None:
    rows, cols = 150, tile_k * next(n for n in range(3, 99) if weight_format(name).fitted(n * tile_k).tile_k == tile_k)
    kind, source = weight_format(name), source_of(name, rows, cols)
    packed = kind.pack(source, rows, cols)
    assert packed.shape == (kind.nbytes(rows, cols),)
    assert packed.tobytes() == kind.fitted(cols).pack(source, rows, cols).tobytes()
    for field, value in kind.unpack(packed, rows, cols).items():
        assert field in source
        assert np.asarray(value).tobytes() == np.ascontiguousarray(source[field]).tobytes(), field


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "e4m3", "e4m3_channel", "e4m3_block"])
def test_any_width_is_packed_where_no_block_forbids_it(name: str) -> None:
    kind, shape = weight_format(name), (19, 131)
    source = source_of(name, *shape)
    again = kind.unpack(kind.pack(source, *shape), *shape)
    assert np.array_equal(kind.dequantise(again, *shape), kind.dequantise(source, *shape))


@pytest.mark.parametrize("name", GGUF)
def test_gguf_dequantises_the_same_blocks_to_the_same_floats(name: str) -> None:
    import gguf

    blocks = random_blocks(name, 33, 1024)
    want = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[GGUF[name]])
    got = weight_format(name).dequantise({"blocks": blocks}, 33, 1024)
    assert got.dtype == np.float32
    assert np.array_equal(got, want)


@pytest.mark.parametrize("name", ["e4m3", "e4m3_channel", "e4m3_block"])
def test_e4m3_is_that_of_ml_dtypes_times_its_scale(name: str) -> None:
    rows, cols = 200, 300
    bits = np.random.default_rng(3).integers(0, 127, (rows, cols), np.uint8)
    weight = bits.view(ml_dtypes.float8_e4m3fn)
    scale = {"e4m3": np.float32(0.5), "e4m3_channel": np.arange(rows, dtype=np.float32),
             "e4m3_block": np.arange(6, dtype=np.float32).reshape(2, 3)}[name]  # fmt: skip
    got = weight_format(name).dequantise({"weight": weight, "scale": scale}, rows, cols)
    wide = weight.astype(np.float32)
    for row, col in ((0, 0), (127, 128), (128, 127), (199, 299)):
        factor = {"e4m3": 0.5, "e4m3_channel": row, "e4m3_block": (row // 128) * 3 + col // 128}[name]
        assert got[row, col] == wide[row, col] * np.float32(factor)


# Largest error of a value over the largest of its block, in a normal matrix.
ROUNDING = {"f32": 0, "f16": 5e-4, "bf16": 4e-3, "e4m3": 0.04, "e4m3_channel": 0.04, "e4m3_block": 0.04, "q8_0": 0.005,
            "q4_0": 0.13, "q4_1": 0.07, "q5_0": 0.065, "q5_1": 0.035, "q4_k": 0.08, "q5_k": 0.05, "q6_k": 0.03,
            "int4_g32": 0.07, "int4_g64": 0.07, "int4_g128": 0.07}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_quantising_rounds_to_what_the_format_has(name: str) -> None:
    values = np.random.default_rng(5).standard_normal((40, 512), np.float32)
    kind = weight_format(name)
    back = kind.dequantise(kind.quantise(values), 40, 512)
    assert np.abs(back - values).max() <= ROUNDING[name] * np.abs(values).max()
    assert not kind.dequantise(kind.quantise(np.zeros((16, 256), np.float32)), 16, 256).any()


# Bits of a weight, scales included. A zero point of int4 is 0 … 16, which is a byte: 4 bits do not hold it.
BITS = {"f32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e4m3_channel": 8, "e4m3_block": 8, "int4_g32": 4 + 24 / 32,
        "int4_g64": 4 + 24 / 64, "int4_g128": 4 + 24 / 128}  # fmt: skip
BITS |= {name: 8 * nbytes / size for name, (size, nbytes) in BLOCK_BYTES.items()}


@pytest.mark.parametrize("name", NAMES)
def test_little_is_padded_whatever_the_number_of_columns(name: str) -> None:
    """Below 2 % for every multiple of 32 that the format has. Beside that are a record's scales of e4m3, and of bf16,
    which has no narrow tiles, half a tile."""
    rows, kind, step = 4096, weight_format(name), max(32, weight_format(name).block_cols)
    for cols in range(step, 8193, step):
        need = BITS[name] * rows * cols / 8
        of_record = {"e4m3": 16, "e4m3_channel": 64, "e4m3_block": 16 + 4 * kind.tiles(cols)}.get(name, 0)
        half_tile = 64 * rows * (cols % 64 > 0) if name == "bf16" else 0
        assert need <= kind.nbytes(rows, cols) <= 1.02 * need + of_record * kind.records(rows) + half_tile, cols


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_stacked_by_their_records(name: str) -> None:
    kind = weight_format(name)
    first, second = (kind.quantise(np.random.default_rng(n).standard_normal((32, 256), np.float32)) for n in (1, 2))
    a, b = kind.pack(first, 32, 256), kind.pack(second, 32, 256)
    both = interleave(a, b, 2)
    assert both[: a.size // 2].tobytes() == a[: a.size // 2].tobytes()
    assert both[a.size // 2 : a.size].tobytes() == b[: a.size // 2].tobytes()
    assert [x.tobytes() for x in separate(both, 2)] == [a.tobytes(), b.tobytes()]


@pytest.mark.parametrize(("name", "cols"), [("q8_0", 100), ("q4_k", 288), ("int4_g64", 96), ("q6_k", 0)])
def test_a_width_that_the_format_forbids_is_refused(name: str, cols: int) -> None:
    with pytest.raises(SpecError, match=rf"{name} weights: cols: must be a multiple of .* \(got {cols}; nearest"):
        weight_format(name).pack({}, 16, cols)


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"\(got 'q4k'; nearest: q4_k\)"):
        weight_format("q4k")


def test_e4m3_weights_are_finite() -> None:
    """On tensor cores the one code that is NaN would be a number."""
    source = weight_format("e4m3").quantise(np.ones((16, 128), np.float32))
    source["weight"][3, 5] = np.nan
    with pytest.raises(SpecError, match=r"e4m3 weights: must be finite \(got NaN at \[3, 5\]\)"):
        weight_format("e4m3").pack(source, 16, 128)


def test_blocks_of_another_size_are_refused() -> None:
    with pytest.raises(SpecError, match=r"blocks: must be uint8 \[16, 144\] \(got uint8 \[16, 143\]\)"):
        weight_format("q4_k").pack({"blocks": np.zeros((16, 143), np.uint8)}, 16, 256)
