"""Every row of the shipped tuning table: the kernel that it chooses gives the right numbers, and does not spill."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from ptxgen.assembler import assemble
from ptxgen.attention.decode.loops.mma import loop as mma
from ptxgen.attention.decode.plan import choice_of
from ptxgen.generator import generate
from ptxgen.kernels import Gemv, IncrementalAttention
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from ptxgen.tuning import Choice, ProductChoice, Row, Table, fixed, shipped, using
from tests.support import sweep
from tests.support.attention.decode_trials import poison
from tests.support.marks import needs_assembler

ROWS = shipped().rows
PRODUCTS = shipped().products
MOST = 4097  # positions: what a longer class chooses is run at so many


def name_of(row: Row) -> str:
    """The class in a few words."""
    where = dict(row.where)
    flags = [name for name in ("batched", "programmatic", "invariant", "strided") if where.get(name)]
    sizes = [str(where.get(name, "any")) for name in ("n_kv_heads", "group", "head_dim")]
    kind = where.get("kv_dtype", f"{where['kv_bytes']}B" if "kv_bytes" in where else "any")
    return "-".join([where["sm"], "x".join(sizes), str(kind), str(where.get("capacity", ("", "any"))[1]), *flags])


def spec_of(row: Row, max_len: int, group: int = 3) -> IncrementalAttention:
    """A spec of the row's class but for its length, and of this group where the class leaves it open."""
    where = dict(row.where)
    kv_dtype = where.get("kv_dtype") or {1: "e4m3", 2: "f16", 4: "f32"}[where.get("kv_bytes", 2)]
    heads = where.get("n_kv_heads", 2)
    batched = where.get("batched", where.get("invariant", False))
    return IncrementalAttention(
        max_len, where.get("head_dim", 64), heads * where.get("group", group), heads,
        q_dtype="f32" if kv_dtype == "f32" else "f16", kv_dtype=kv_dtype, batched=batched, indirect=not batched,
        programmatic=where.get("programmatic", False), batch_invariant=where.get("invariant", False),
        strided=where.get("strided", False),
    )  # fmt: skip


def fewer_heads(one: IncrementalAttention, choice: Choice, sm: str) -> tuple[IncrementalAttention, Choice]:
    """The same kernel over one KV head: with so many CTAs that a KV head has as many splits as before."""
    group = one.n_heads // one.n_kv_heads
    small = dataclasses.replace(one, n_heads=group, n_kv_heads=1)
    for ctas in range(choice.grid // one.n_kv_heads, choice.grid + 1):
        fewer = dataclasses.replace(choice, grid=ctas)
        plans = []
        for spec, way in ((one, choice), (small, fewer)):
            with using(fixed(way)):
                plans.append(spec.plan(target(sm)))
        if len({(p.shape, p.cluster, p.most_splits, p.mergers, p.split_tiles) for p in plans}) == 1:
            return small, fewer
    return one, choice


def chosen(row: Row) -> tuple[IncrementalAttention, Choice]:
    """The shortest spec of the row's class, and what is chosen for it."""
    spec = spec_of(row, dict(row.where).get("capacity", (600,))[0])
    with using(Table((row,))):
        return spec, choice_of(
            spec.attention, target(dict(row.where)["sm"]), batched=spec.batched, invariant=spec.batch_invariant,
            programmatic=spec.programmatic,
        )  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_row_is_what_is_chosen(row: Row) -> None:
    assert dict(row.choose).items() <= vars(chosen(row)[1]).items()


@pytest.mark.parametrize("row", sweep.some(ROWS, 40), ids=name_of)
def test_the_kernel_of_a_row(device: Device, row: Row) -> None:
    sm, (spec, choice) = dict(row.where)["sm"], chosen(row)
    one, choice = fewer_heads(spec_of(row, min(spec.max_len, MOST)), choice, sm)
    sizes = ({"batch": 3} if one.batched else {}) | ({"n_keys": one.max_len} if one.strided else {})
    given = one.example(np.random.default_rng(4), **sizes)
    if one.strided:
        given["starts"][:] = 0
    for length in (one.max_len, one.max_len // 3):
        if one.batched:
            given["seq_lens"] = np.array([length, 0, 5], np.int32)
        else:
            given["seq_len"] = np.array([length], np.int32)
        poison(one, given)
        with using(fixed(choice)):
            trial(one, device, target=sm, arguments=given, repeat=False, **sizes).require()


@needs_assembler
@pytest.mark.parametrize("row", sweep.some(ROWS, 40), ids=name_of)
def test_the_kernel_of_a_row_keeps_its_registers(row: Row) -> None:
    """None spills, nor is a large group left to the loop without tensor cores, whatever the class leaves open."""
    where = dict(row.where)
    groups = [where["group"]] if "group" in where else [1, 16]
    for group, alibi in itertools.product(groups, (False, True) if sweep.ALL else (True,)):  # biases take registers
        spec = dataclasses.replace(spec_of(row, where.get("capacity", (600,))[0], group), alibi=alibi)
        with using(Table((row,))):
            plan, ptx = spec.plan(target(where["sm"])), generate(spec, where["sm"])
        assert plan.loop is mma or group == 1 or spec.kv_dtype.name == "f32"
        assert assemble(ptx.text, where["sm"]).resources[ptx.entry].clean


# -- rows of products --------------------------------------------------------------------------------------------------


def product_of(row: Row) -> Gemv:
    """A product of the row's class."""
    where = dict(row.where)
    gated = where.get("gated", False)
    return Gemv(
        where["n"], where["k"], where["weights"], gated=gated, activation="silu" if gated else "",
        programmatic=where.get("programmatic", False),
    )  # fmt: skip


def product_name(row: Row) -> str:
    where = dict(row.where)
    return f"{where['n']}x{where['k']}-{where['weights']}"


@pytest.mark.parametrize("row", PRODUCTS, ids=product_name)
def test_a_product_has_the_geometry_of_its_row(row: Row) -> None:
    """Also in the shipped table, where no row above it counts first."""
    one, where = product_of(row), target(dict(row.where)["sm"])
    with using(fixed(ProductChoice(**dict(row.choose)))):
        wanted = one.geometry(where)
    assert one.geometry(where) == wanted
    with using(fixed(ProductChoice(2, 2, 2))):
        assert one.geometry(where) != wanted


@pytest.mark.parametrize("row", sweep.some(PRODUCTS, 3), ids=product_name)
def test_the_kernel_of_a_row_of_a_product(device: Device, row: Row) -> None:
    """Of few rows, which some of its CTAs share."""
    sm, one = dict(row.where)["sm"], dataclasses.replace(product_of(row), n=72)
    with using(fixed(ProductChoice(**{**dict(row.choose), "ctas": 3}))):
        trial(one, device, target=sm, repeat=False).require()


@needs_assembler
@pytest.mark.parametrize("row", sweep.some(PRODUCTS, 40), ids=product_name)
def test_the_kernel_of_a_row_of_a_product_keeps_its_registers(row: Row) -> None:
    ptx = generate(product_of(row), "sm_90")
    assert assemble(ptx.text, "sm_90").resources[ptx.entry].clean
