"""Check mode finds each known bug at its line, and nothing in its mended twin."""

from __future__ import annotations

import re
import warnings

import pytest

from ptxgen.errors import ExecutionError, ExecutionNote
from ptxgen.finding import Finding
from ptxgen.runtime import open_device
from tests.evidence.known_races.pair import Pair, pairs

TITLES = {pair.finds for pair in pairs().values()}


def found(pair: Pair, broken: bool) -> tuple[Finding, ...]:
    """What check mode says of one of the two; notes count."""
    device = open_device("cpu", mode="check", threads=1, time_limit=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ExecutionNote)
        try:
            pair.run(device, broken)
        except ExecutionError as error:
            return error.findings
    return ()


@pytest.mark.parametrize("name", pairs())
def test_the_bug_is_found_at_its_line(name):
    pair = pairs()[name]
    seen = found(pair, broken=True)
    hits = [f for f in seen if f.kind == pair.finds and any(spot.line in pair.lines for spot in f.spots)]
    assert bool(hits) is not bool(pair.missed), pair.missed or seen


@pytest.mark.parametrize("name", pairs())
def test_nothing_is_found_in_the_mended_one(name):
    assert not found(pairs()[name], broken=False)


def test_every_pair_says_where_it_comes_from_and_what_is_wrong():
    assert len(pairs()) >= 30
    assert sum(bool(pair.missed) for pair in pairs().values()) <= 1
    for name, pair in pairs().items():
        assert re.match(r"https://\S+$", pair.report), name
        assert pair.wrong, name
        assert pair.lines, name
        assert pair.source(True) != pair.source(False), name
    assert len(TITLES) >= 9
