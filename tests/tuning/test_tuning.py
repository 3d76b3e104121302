"""Tuning tables: what rows match, what a wrong table is told, that no kernel outlives the table it was made with."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptxgen import SpecError, tuning
from ptxgen.attention.decode.plan import CHIPS, Plan, choice_of
from ptxgen.doctor import examine
from ptxgen.generator import generate
from ptxgen.kernels import Gemv, IncrementalAttention
from ptxgen.runtime import open_device
from ptxgen.targets import target
from ptxgen.tuning import Choice, ProductChoice, Row, Shape, Table, fixed, in_force, shipped, using

LLAMA = IncrementalAttention(
    max_len=4096, head_dim=128, n_heads=32, n_kv_heads=8, q_dtype="f16", kv_dtype="f16", indirect=True
)
SHAPE = Shape("sm_90", 128, 4, 8, "f16", 2, 4096, batched=False, paged=False)
OTHERS = {"head_dim": 24, "group": 3, "n_kv_heads": 3}  # that no row names
OTHER = Choice(warps=2, cluster=2, grid=48, in_flight=1, split_positions=4096)


def rows(*plain: dict[str, Any]) -> Table:
    """A table of these rows."""
    return Table.of({"rows": list(plain)}, "here.json")


def planned(spec: IncrementalAttention = LLAMA, where: str = "sm_90") -> Plan:
    return spec.plan(target(where))


def test_every_shipped_row_is_the_first_for_some_shape() -> None:
    """One that stands behind more general rows would never count."""
    seen = set()
    for row in shipped().rows:
        where = dict(row.where)
        dim, group, heads = (where.get(name, other) for name, other in OTHERS.items())
        size = where.get("kv_bytes", 1 if where.get("kv_dtype") in ("s8", "e4m3") else 4)
        kinds = [where["kv_dtype"]] if "kv_dtype" in where else {1: ["e4m3", "s8"], 2: ["f16"], 4: ["f32"]}[size]
        names = ("batched", "invariant", "programmatic", "strided")
        flags = [[where[name]] if name in where else [False, True] for name in names]
        for kind, capacity, (batched, *others) in itertools.product(
            kinds, where.get("capacity", (8, 1 << 20)), itertools.product(*flags)
        ):
            shape = Shape(where["sm"], dim, group, heads, kind, size, capacity, batched, False, *others)
            seen.add(next((index for index, other in enumerate(shipped().rows) if other.matches(shape)), None))
    assert sorted(i for i in seen if i is not None) == list(range(len(shipped().rows)))


def test_the_shipped_table_is_written_as_the_tool_writes_it() -> None:
    assert Path(tuning.SHIPPED).read_text(encoding="utf-8") == shipped().text()
    assert [sm for sm, _ in shipped().models] == list(CHIPS)


def test_no_row_of_the_shipped_table_is_hidden_by_one_above_it() -> None:
    for index, row in enumerate(shipped().rows):
        hiding = [above for above in shipped().rows[:index] if _covers(dict(above.where), dict(row.where))]
        assert not hiding, row


def _covers(above: dict[str, Any], below: dict[str, Any]) -> bool:
    """Whether everything that the lower row matches is matched by the upper one."""
    if "capacity" in above:
        first, last = below.get("capacity", (0, 1 << 30))
        if not above["capacity"][0] <= first <= last <= above["capacity"][1]:
            return False
    if above.get("invariant", False) != below.get("invariant", False):
        return False
    return all(below.get(name) == value for name, value in above.items() if name not in ("capacity", "invariant"))


def test_hidden_rows_are_found() -> None:
    assert _covers({"sm": "sm_90", "capacity": (1, 9)}, {"sm": "sm_90", "capacity": (2, 9), "group": 4})
    assert not _covers({"sm": "sm_90", "capacity": (1, 9)}, {"sm": "sm_90"})
    assert not _covers({"group": 4}, {"sm": "sm_90"})
    assert not _covers({"sm": "sm_90"}, {"sm": "sm_90", "invariant": True})


@pytest.mark.parametrize(
    ("where", "matches"),
    [
        ({}, True), ({"sm": "sm_90", "group": 4}, True), ({"sm": "sm_80"}, False), ({"capacity": [4096, 4096]}, True),
        ({"capacity": [1, 4095]}, False), ({"capacity": [4097, 9999]}, False), ({"batched": False}, True),
        ({"paged": True}, False), ({"kv_bytes": 2, "kv_dtype": "bf16"}, False), ({"n_kv_heads": 8}, True),
        ({"invariant": True}, False), ({"invariant": False}, True),
    ],
)  # fmt: skip
def test_a_row_matches_what_its_keys_leave(where: dict[str, Any], matches: bool) -> None:
    assert rows({**where, "choose": {"warps": 2}}).rows[0].matches(SHAPE) is matches


def test_the_first_row_that_matches_counts() -> None:
    table = rows({"group": 5, "choose": {"warps": 1}}, {"choose": {"warps": 2}}, {"choose": {"warps": 4, "grid": 1}})
    assert table.choose(SHAPE, OTHER) == Choice(2, 2, 48, 1, 4096)


def test_a_row_may_leave_the_rest_to_the_model() -> None:
    attention = replace(LLAMA, head_dim=72).attention  # no shipped row names it
    default = choice_of(attention, target("sm_90"), batched=False)
    with using(rows({"sm": "sm_90", "choose": {"in_flight": 7}})):
        chosen = choice_of(attention, target("sm_90a"), batched=False)
    assert chosen == Choice(default.warps, default.cluster, default.grid, 7, default.split_positions)


def test_own_rows_stand_before_the_others_and_own_models_replace_theirs() -> None:
    positions = {"bytes_in_flight": 64, "split_positions": 64, "invariant_positions": 64}
    model = {"tiny": 9, "short": 9, "single": 9, "middle": 9, "many": 9, **positions}
    own = Table.of({"models": {"sm_90": model}, "rows": [{"choose": {"warps": 1}}]}, "own")
    both = own.over(Table((*shipped().rows, Row((), ())), shipped().models))
    assert both.rows[0] == own.rows[0]
    assert both.model("sm_90").short == 9
    assert both.model("sm_80") == shipped().model("sm_80")


def test_the_window_is_the_capacity() -> None:
    with using(rows({"capacity": [100, 100], "choose": {"warps": 2}})):
        assert planned().shape.warps != 2
        windowed = IncrementalAttention(max_len=4096, head_dim=128, n_heads=32, n_kv_heads=8, window=100)
        assert planned(windowed).shape.warps == 2


def test_a_choice_becomes_the_geometry() -> None:
    with using(fixed(OTHER)):
        plan = planned()
    assert (plan.shape.warps, plan.cluster, plan.splits, plan.shape.in_flight) == (2, 2, 3, 1)


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ([], "must be an object with models, rows and products (got list)"),
        ({"row": []}, "must be an object with models, rows and products (got an object with row)"),
        ({"rows": {}}, "rows must be a list"),
        ({"products": {}}, "products must be a list"),
        ({"rows": [{"choose": {}}, {"sm": "sm_90"}]}, "row 2: must be an object with choose"),
        ({"rows": [{"heads": 4, "choose": {}}]}, "row 1: heads: no such key; there are sm, head_dim, group"),
        ({"rows": [{"group": "4", "choose": {}}]}, 'row 1: group: must be of type int (got "4")'),
        ({"rows": [{"batched": 1, "choose": {}}]}, "row 1: batched: must be of type bool (got 1)"),
        ({"rows": [{"capacity": [9, 1], "choose": {}}]}, "capacity: must be [first, last], two integers (got [9, 1])"),
        ({"rows": [{"choose": {"warp": 4}}]}, "row 1: choose: warp: no such key; there are warps, cluster, grid"),
        ({"rows": [{"choose": {"cluster": 3}}]}, "choose: cluster: must be a power of two from 1 to 16 (got 3)"),
        ({"rows": [{"choose": {"grid": 0}}]}, "choose: grid: must be an integer from 1 to 1048576 (got 0)"),
        ({"rows": [{"choose": {"grid": True}}]}, "choose: grid: must be an integer from 1 to 1048576 (got true)"),
        ({"models": {"sm_90": {"short": 1}}}, "models: sm_90: tiny, single, middle, many, bytes_in_flight, split_pos"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_told_where_and_why(plain: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(SpecError) as refused:
        Table.read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.json: a tuning table that cannot be read \(No such file"):
        Table.read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SpecError, match=r"bad\.json: not JSON"):
        Table.read(tmp_path / "bad.json")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    table = rows({"sm": "sm_90", "capacity": [1, 9], "choose": {"warps": 2}, "note": "5.1 us"}, {"choose": {"grid": 9}})
    path = tmp_path / "own.json"
    path.write_text(table.over(shipped()).text())
    again = Table.read(path)
    assert again.rows == table.rows + shipped().rows
    assert again.models == shipped().models
    assert again.digest == table.over(shipped()).digest != table.digest


def test_text_follows_the_table_and_nothing_else() -> None:
    before = generate(LLAMA, "sm_90")
    with using(fixed(OTHER)):
        changed = generate(LLAMA, "sm_90")
        assert generate(LLAMA, "sm_90") is changed
    with using(fixed(OTHER)):
        assert generate(LLAMA, "sm_90").text == changed.text
    assert changed.text != before.text
    assert changed.launch.block == (64, 1, 1)
    assert generate(LLAMA, "sm_90") is before


def test_a_device_has_no_kernel_of_another_table() -> None:
    device = open_device("cpu")
    small = IncrementalAttention(max_len=600, head_dim=16, n_heads=2, n_kv_heads=1)
    before = device.load(small)
    with using(fixed(OTHER)):
        changed = device.load(small)
        assert changed.ptx.launch.block == (64, 1, 1) != before.ptx.launch.block
        assert device.load(small) is changed
    assert device.load(small) is before


def test_the_variable_names_a_users_own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.json"
    path.write_text(fixed(OTHER).text())
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    monkeypatch.setattr(tuning, "_in_force", None)
    assert planned().shape.warps == 2
    assert in_force().rows == fixed(OTHER).rows + shipped().rows
    monkeypatch.setenv(tuning.VARIABLE, str(tmp_path / "none.json"))
    monkeypatch.setattr(tuning, "_in_force", None)
    with pytest.raises(SpecError, match=r"none\.json: a tuning table that cannot be read"):
        planned()


def test_doctor_says_which_table_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> tuple[str, str]:
        (line,) = (line for line in examine() if line.topic == "tuning")
        return line.state, line.text

    assert said() == ("ok", "the shipped table (PTXGEN_TUNING is not set)")
    path = tmp_path / "own.json"
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    assert said() == ("wrong", f"{path}: a tuning table that cannot be read (No such file or directory)")
    path.write_text(rows({"choose": {"warps": 2}}).text())
    assert said() == ("ok", f"{path}: 1 row before the shipped ones")


# -- rows of products --------------------------------------------------------------------------------------------------


def product_rows(*plain: dict[str, Any]) -> Table:
    return Table.of({"products": list(plain)}, "here")


def test_a_row_of_a_product_becomes_its_geometry() -> None:
    row = {"sm": "sm_90", "weights": "q4_k", "k": 5632, "choose": {"warps": 8, "stages": 3, "ctas": 64}}
    one, before = Gemv(2048, 5632, "q4_k"), Gemv(2048, 5632, "q4_k").geometry(target("sm_90"))
    with using(product_rows(row)):
        at = one.geometry(target("sm_90"))
        assert (at.warps, at.stages, at.ctas) == (8, 3, 64)
        assert one.geometry(target("sm_80")) == Gemv(2048, 5632, "q4_k").geometry(target("sm_80"))
        assert Gemv(2048, 5632, "q6_k").geometry(target("sm_90")).ctas != 64
        text = generate(one, "sm_90").text
    assert one.geometry(target("sm_90")) == before
    assert generate(one, "sm_90").text != text


def test_a_product_keeps_to_the_work_there_is() -> None:
    with using(fixed(ProductChoice(32, 8, 1000))):
        at = Gemv(64, 512, "q4_k").geometry(target("sm_90"))
    assert (at.ctas, at.warps, at.stages) == (4, 2, 1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"choose": {"warps": 8, "stages": 3}}, "here: products: row 1: choose: ctas: must be given"),
        ({"choose": {"warps": 33, "stages": 3, "ctas": 9}}, "warps: must be an integer from 1 to 32"),
        ({"batch": 1, "choose": {"warps": 8, "stages": 3, "ctas": 9}}, "batch: no such key; there are sm, weights, n"),
        ({"n": "8", "choose": {"warps": 8, "stages": 3, "ctas": 9}}, "n: must be of type int"),
    ],
)
def test_a_wrong_row_of_a_product_is_told(row: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        product_rows(row)


def test_rows_of_products_are_written_and_read_again(tmp_path: Path) -> None:
    row = {"sm": "sm_90", "weights": "q4_k", "n": 64, "choose": {"warps": 8, "stages": 3, "ctas": 64}, "note": "1 us"}
    table = product_rows(row)
    (tmp_path / "own.json").write_text(table.text())
    assert Table.read(tmp_path / "own.json").products == table.products
    assert Table.read(tmp_path / "own.json").text() == table.text()
    more = table.with_rows(products=[table.products[0]._replace(note="2 us")])
    assert [each.note for each in more.products] == ["2 us"]
    assert Table().over(table).products == table.over(Table()).products == table.products
