"""Architectures are a lattice: what a target includes, what runs it, and that the tables agree about every row."""

from __future__ import annotations

import itertools

import pytest

from ptxgen import targets
from ptxgen.errors import TargetError
from ptxgen.targets import ALL_TARGETS, driver_for_ptx, newest_ptx, own_target, target, target_of_capability

CAPABILITIES = sorted({(t.major, t.minor) for t in ALL_TARGETS})
PAIRS = list(itertools.product(ALL_TARGETS, ALL_TARGETS))


def includes(a: str, b: str) -> bool:
    return target(a).includes(target(b))


def test_every_architecture_has_a_row_in_every_table() -> None:
    assert set(targets._SHARED_LIMIT) == set(targets._LOWEST_PTX) == set(CAPABILITIES)
    assert all("" in row for row in targets._LOWEST_PTX.values())
    assert all(t.shared_limit >= targets.STATIC_SHARED_LIMIT for t in ALL_TARGETS)


def test_every_targets_lowest_ptx_is_loaded_by_a_known_driver() -> None:
    for each in ALL_TARGETS:
        assert driver_for_ptx(each.lowest_ptx) is not None, each
        assert each.lowest_ptx <= newest_ptx()


@pytest.mark.parametrize("name", [each.name for each in ALL_TARGETS])
def test_a_name_stands_for_its_target(name: str) -> None:
    assert target(name).name == str(target(name)) == name
    assert target(name.replace("sm_", "compute_")) == target(name.replace("_", "")) == target(name)
    number = name.removeprefix("sm_").rstrip("af")
    dotted = f"{number[:-1]}.{name.removeprefix('sm_' + number[:-1])}"
    assert target(dotted) == target(name)
    assert own_target([name.replace("_", "")]) is own_target([dotted]) is None, "PTX has one name"
    assert own_target([name, "debug"]) == target(name)


@pytest.mark.parametrize("name", ["sm_52", "sm_91", "sm_80a", "90", "sm_90b", "", "sm_٩٠", "sm_" + "9" * 4999])
def test_other_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(TargetError, match=r"^target: must be one of sm_70, .*sm_90a"):
        target(name)
    assert own_target([name]) is None


def test_inclusion_is_a_partial_order() -> None:
    assert all(each.includes(each) for each in ALL_TARGETS)
    assert [(a, b) for a, b in PAIRS if a != b and a.includes(b) and b.includes(a)] == []
    for a, b in PAIRS:
        if a.includes(b):
            assert [c for c in ALL_TARGETS if b.includes(c) and not a.includes(c)] == [], (a, b)


def test_what_runs_a_target_runs_what_it_includes() -> None:
    """A device that can run `a` can run every `b` that `a` includes."""
    for a, b in PAIRS:
        if a.includes(b):
            assert [cc for cc in CAPABILITIES if a.runs_on(cc) and not b.runs_on(cc)] == [], (a, b)


def test_without_a_suffix_later_architectures_include_earlier_ones() -> None:
    plain = [each for each in ALL_TARGETS if not each.suffix]
    assert all(a.includes(b) == ((a.major, a.minor) >= (b.major, b.minor)) for a, b in itertools.product(plain, plain))
    assert all(each.includes(each.base) for each in ALL_TARGETS)


@pytest.mark.parametrize(("here", "there", "expected"), [
    ("sm_100", "sm_90", True), ("sm_90", "sm_100", False), ("sm_120", "sm_103", True),
    ("sm_90a", "sm_90", True), ("sm_90", "sm_90a", False), ("sm_100a", "sm_90a", False), ("sm_100f", "sm_90a", False),
    ("sm_103f", "sm_100f", True), ("sm_100f", "sm_103f", False), ("sm_103a", "sm_100f", True),
    ("sm_103", "sm_100f", False), ("sm_110f", "sm_100f", False), ("sm_120f", "sm_100f", False),
    ("sm_103f", "sm_100a", False), ("sm_103a", "sm_100a", False),
])  # fmt: skip
def test_a_suffix_reaches_its_family_or_itself(here: str, there: str, expected: bool) -> None:
    assert includes(here, there) is expected


def test_an_alternative_is_enough_and_no_alternative_is_no_demand() -> None:
    assert target("sm_100f").includes_any(("sm_90a", "sm_100f"))
    assert not target("sm_100").includes_any(("sm_90a", "sm_100f"))
    assert target("sm_70").includes_any(())


@pytest.mark.parametrize(("name", "runs", "does_not"), [
    ("sm_80", [(8, 0), (8, 9), (9, 0), (12, 1)], [(7, 5)]),
    ("sm_90a", [(9, 0)], [(8, 9), (10, 0), (12, 0)]),
    ("sm_100f", [(10, 0), (10, 1), (10, 3)], [(9, 0), (11, 0), (12, 0)]),
    ("sm_103f", [(10, 3)], [(10, 0), (12, 0)]),
])  # fmt: skip
def test_a_suffix_decides_what_runs_a_target(name: str, runs: list[object], does_not: list[object]) -> None:
    assert [cc for cc in CAPABILITIES if cc in runs and not target(name).runs_on(cc)] == []
    assert [cc for cc in CAPABILITIES if cc in does_not and target(name).runs_on(cc)] == []


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "sm_75"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a"),
                                                  ((10, 2), "sm_101f"), ((13, 0), "sm_121")])  # fmt: skip
def test_the_most_capable_target_of_a_device(capability: tuple[int, int], name: str) -> None:
    assert target_of_capability(*capability).name == name


def test_a_device_before_all_targets_has_none() -> None:
    with pytest.raises(TargetError, match=r"7\.0 or newer \(got 6\.1\)"):
        target_of_capability(6, 1)
