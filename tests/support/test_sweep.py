"""Which cases are drawn: no value of an axis is left out of all."""

from __future__ import annotations

import itertools

import pytest

from tests.support.sweep import drawn, is_drawn

ROUNDS = 40


@pytest.mark.parametrize("draw", range(2, 8))
def test_one_case_of_a_round_is_drawn(draw: int) -> None:
    for turn in range(ROUNDS):
        assert [is_drawn(n, draw) for n in range(turn * draw, (turn + 1) * draw)].count(True) == 1
    assert is_drawn(0, draw)


@pytest.mark.parametrize("draw", range(2, 8))
@pytest.mark.parametrize("values", [2, 3, 4])
def test_each_value_of_an_axis_is_drawn(draw: int, values: int) -> None:
    """Of the axis that changes fastest, and of one around an axis of 2, 3 or 4."""
    cases = [n for n in range(ROUNDS * draw) if is_drawn(n, draw)]
    for inner in (1, 2, 3, 4):
        assert {n // inner % values for n in cases} == set(range(values)), inner


def test_all_are_drawn_where_every_case_is_asked_for() -> None:
    assert all(is_drawn(n, 1) for n in itertools.islice(itertools.count(), 9))


@pytest.mark.parametrize("draw", range(1, 8))
@pytest.mark.parametrize("count", [1, 4, 5, 17, 60])
def test_starts_in_a_row_draw_every_case(draw: int, count: int) -> None:
    cases = range(count)
    shares = [drawn(cases, draw, start) for start in range(100, 100 + max(draw, count))]
    assert all(shares)
    assert set().union(*shares) == set(cases)
    assert not drawn([], draw, 100)
