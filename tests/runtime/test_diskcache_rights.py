"""Whose directories, entries and links the disk cache uses: none that another user may write."""

import os
import stat
import warnings

import pytest

from ptxgen.runtime.core.diskcache import DiskCache


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_directories_and_entries_are_the_users_alone(tmp_path):
    before = os.umask(0)
    try:
        cache = DiskCache(tmp_path / "a" / "b")
        cache.put(b"k", b"payload")
    finally:
        os.umask(before)
    assert [mode_of(path) for path in (tmp_path / "a", tmp_path / "a" / "b", cache.path(b"k"))] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_may_write_is_not_used(tmp_path, mode):
    DiskCache(tmp_path / "c").put(b"k", b"planted")
    (tmp_path / "c").chmod(mode)
    cache = DiskCache(tmp_path / "c")
    with pytest.warns(RuntimeWarning, match=rf"the directory may be written by others .mode {mode:o}.*stay in memory"):
        assert cache.get(b"k") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(b"k", b"own")
    assert cache.get(b"k") == b"own"
    assert len(list((tmp_path / "c").iterdir())) == 1


@pytest.mark.parametrize("through", ["itself", "a link to it"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_in_whose_place_others_may_put_one_is_not_used(tmp_path, mode, through):
    above = tmp_path / "a"
    DiskCache(above / "b" / "c").put(b"k", b"planted")
    if through == "a link to it":
        (tmp_path / "link").symlink_to(above / "b" / "c")
    above.chmod(mode)
    cache = DiskCache(above / "b" / "c" if through == "itself" else tmp_path / "link")
    with pytest.warns(RuntimeWarning, match=rf"{above} above it may be written by others .mode {mode:o}.*in memory"):
        assert cache.get(b"k") is None
    cache.put(b"k2", b"own")
    assert cache.get(b"k2") == b"own"
    assert len(list((above / "b" / "c").iterdir())) == 1


def test_a_link_that_others_may_replace_is_not_followed(tmp_path):
    DiskCache(tmp_path / "c").put(b"k", b"planted")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "c")
    (tmp_path / "open").chmod(0o777)
    with pytest.warns(RuntimeWarning, match=r"open above it may be written by others"):
        assert DiskCache(tmp_path / "open" / "link").get(b"k") is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_in_the_place_of_an_entry_is_not_waited_for(tmp_path):
    cache = DiskCache(tmp_path / "c")
    cache.put(b"k", b"payload")
    cache.path(b"k").unlink()
    os.mkfifo(cache.path(b"k"), 0o600)
    assert DiskCache(tmp_path / "c").get(b"k") is None


def test_a_directory_of_ours_in_a_sticky_one_is_used(tmp_path):
    DiskCache(tmp_path / "a" / "c").put(b"k", b"payload")
    (tmp_path / "a").chmod(0o1777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DiskCache(tmp_path / "a" / "c").get(b"k") == b"payload"


@pytest.mark.parametrize("owner", ["root", "another"])
def test_a_directory_above_may_be_roots_and_no_other_users(tmp_path, monkeypatch, owner):
    DiskCache(tmp_path / "a" / "c").put(b"k", b"payload")
    real, other = os.stat, 0 if owner == "root" else os.geteuid() + 1

    def stat_of(path, *given, **named):
        found = list(real(path, *given, **named))
        if str(path) == str(tmp_path / "a"):
            found[stat.ST_UID] = other
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", stat_of)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        payload = DiskCache(tmp_path / "a" / "c").get(b"k")
    assert payload == (b"payload" if owner == "root" else None)
    assert [f"{tmp_path / 'a'} above it belongs to user {other}" in str(w.message) for w in said] == [True] * bool(
        other
    )


def test_nothing_is_made_below_a_directory_of_another_user(tmp_path, monkeypatch):
    real, other = os.stat, os.geteuid() + 1

    def stat_of(path, *given, **named):
        found = list(real(path, *given, **named))
        if str(path) == str(tmp_path):
            found[stat.ST_UID] = other
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", stat_of)
    with pytest.warns(RuntimeWarning, match=f"{tmp_path} above it belongs to user {other}; entries stay in memory"):
        DiskCache(tmp_path / "a" / "c").put(b"k", b"payload")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o660, 0o606])
def test_an_entry_that_others_may_write_is_not_used(tmp_path, mode):
    cache = DiskCache(tmp_path / "c")
    cache.put(b"k", b"planted")
    cache.path(b"k").chmod(mode)
    with pytest.warns(RuntimeWarning, match="may be written by others"):
        assert cache.get(b"k") is None


@pytest.mark.parametrize("what", ["the directory", "entry"])
def test_what_belongs_to_another_user_is_not_used(tmp_path, monkeypatch, what):
    cache = DiskCache(tmp_path / "c")
    cache.put(b"k", b"planted")
    real, mine = os.stat if what == "the directory" else os.fstat, os.geteuid()

    def another(*given, **named):
        found = list(real(*given, **named))
        found[stat.ST_UID] = mine + 1
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat" if what == "the directory" else "fstat", another)
    with pytest.warns(RuntimeWarning, match=f"belongs to user {mine + 1}, not to {mine}"):
        assert cache.get(b"k") is None


def test_an_entry_that_is_a_link_is_not_used(tmp_path):
    cache = DiskCache(tmp_path / "c")
    cache.put(b"k", b"planted")
    cache.path(b"k").rename(tmp_path / "elsewhere")
    cache.path(b"k").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(RuntimeWarning, match="entries stay in memory"):
        assert cache.get(b"k") is None
