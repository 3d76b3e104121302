"""The parity verdict accepts rounding and refuses everything else."""

import numpy as np
import pytest

from ptxgen.kernels import KvCacheScatter
from ptxgen.parity import LIMITS, compare, limit_of


def test_rounding_passes_and_a_wrong_element_does_not():
    want = np.random.default_rng(0).standard_normal((4, 64))
    got = want.astype(np.float16)
    assert compare("out", got, want, LIMITS["f16"]).ok
    got[2, 5] += 0.25
    verdict = compare("out", got, want, LIMITS["f16"])
    assert not verdict.ok
    assert verdict.worst == (2, 5)
    assert "[2, 5]" in str(verdict)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_stand_where_the_reference_has_it(bad):
    want = np.array([1.0, -np.inf, 2.0])
    assert compare("lse", want.copy(), want, 1e-5).ok
    for index in (0, 1):
        got = want.copy()
        got[index] = bad if index == 0 else 0.0
        assert not compare("lse", got, want, 1e-5).ok


def test_integers_are_compared_exactly():
    want = np.arange(8, dtype=np.int8)
    assert compare("k", want.copy(), want, 1.0).ok
    got = want.copy()
    got[3] = 9
    assert not compare("k", got, want, 1.0).ok


def test_a_result_of_another_shape_fails():
    assert not compare("out", np.zeros((2, 2)), np.zeros(4), 1.0).ok


def test_a_zero_reference_is_judged_absolutely():
    assert compare("out", np.zeros(3), np.zeros(3), 1e-5).ok
    assert not compare("out", np.full(3, 1e-3), np.zeros(3), 1e-5).ok


def test_the_limits_are_those_that_the_documents_name():
    """Another number here lets wrong kernels pass everywhere."""
    assert LIMITS == {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2, "e4m3": 2e-3, "e5m2": 2e-3, "s8": 2e-3}


def test_nothing_is_as_it_should_be_and_one_element_is_judged():
    assert compare("out", np.zeros((0, 4)), np.zeros((0, 4)), 1e-5).ok
    assert not compare("out", np.array([2.0]), np.array([1.0]), 1e-5).ok


def test_the_limit_follows_the_coarsest_type():
    assert limit_of(KvCacheScatter(max_len=8, head_dim=8, n_kv_heads=1)) == LIMITS["f32"]
    assert limit_of(KvCacheScatter(max_len=8, head_dim=8, n_kv_heads=1, kv_dtype="bf16")) == LIMITS["bf16"]


def test_a_kernel_type_names_its_own_limit(monkeypatch):
    monkeypatch.setattr(KvCacheScatter, "error_limit", 1e-7)
    assert limit_of(KvCacheScatter(max_len=8, head_dim=8, n_kv_heads=1, kv_dtype="bf16")) == 1e-7


def test_nothing_and_equal_integers_have_no_error() -> None:
    empty = compare("x", np.zeros(0), np.zeros(0), 0.1)
    assert (empty.ok, empty.error, empty.limit) == (True, 0.0, 0.1)
    equal = compare("x", np.arange(5), np.arange(5), 0.1)
    assert (equal.ok, equal.error, equal.limit) == (True, 0.0, 0.0)


def test_infinities_that_agree_count_neither_as_error_nor_as_size() -> None:
    want = np.array([np.inf, -np.inf, np.nan, 3.0, 4.0])
    got = np.array([np.inf, -np.inf, np.nan, 3.0, 4.5])
    assert compare("x", got, want, 0.1).error == 0.1
    small = np.full(10_000, 2.0**-10)
    small[0] = np.inf
    wrong = small.copy()
    wrong[77] += 9 * 2.0**-7 * 2.0**-10
    verdict = compare("x", wrong, small, 2.0**-7)
    assert verdict.error < 2.0**-7
    assert not verdict.ok, "the largest is 2⁻¹⁰, whatever is infinite"


def test_what_is_exactly_at_a_limit_passes() -> None:
    assert compare("x", np.array([1.5, 0.0]), np.array([1.0, 0.0]), 0.5).ok
    assert not compare("x", np.array([1.75, 0.0]), np.array([1.0, 0.0]), 0.5).ok
    want = np.full(4096, 128.0)
    for factor, fine in ((8.0, True), (8.5, False)):
        got = want.copy()
        got[9] += factor * 2.0**-10 * 128.0
        assert compare("x", got, want, 2.0**-10).ok is fine, "of the largest magnitude, 128"
