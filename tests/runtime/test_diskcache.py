"""Facts about the disk cache: damage, failing file systems, where it lies, eviction."""

import errno
import os
import sys
import time
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest

from ptxgen.files.user_cache import default_directory
from ptxgen.runtime.core.diskcache import DEFAULT_CAP_BYTES, DiskCache, key_of


def test_an_entry_survives_the_process(tmp_path):
    DiskCache(tmp_path).put(b"k", b"payload")
    assert DiskCache(tmp_path).get(b"k") == b"payload"
    assert DiskCache(tmp_path).get(b"other") is None


def test_an_empty_payload_is_not_a_miss(tmp_path):
    DiskCache(tmp_path).put(b"k", b"")
    assert DiskCache(tmp_path).get(b"k") == b""


def test_every_truncation_and_every_flipped_byte_is_a_miss(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put(b"key", b"some payload")
    path = cache.path(b"key")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert cache.get(b"key") is None
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert cache.get(b"key") is None, position
    path.write_bytes(whole + b"x")
    assert cache.get(b"key") is None
    assert not path.exists(), "a damaged entry is removed"


def test_a_file_of_another_key_is_a_miss(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put(b"a", b"1")
    cache.path(b"b").write_bytes(cache.path(b"a").read_bytes())
    assert cache.get(b"b") is None


def test_key_parts_do_not_merge():
    assert key_of(["ab", "c"]) != key_of(["a", "bc"])
    assert len({key_of([b"1"]), key_of([1]), key_of(["1"])}) == 3


@pytest.mark.parametrize("number", [errno.EBUSY, errno.ENOENT, errno.ESTALE, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_failing_write_warns_once_and_keeps_the_entry_in_memory(tmp_path, monkeypatch, number, call):
    def fail(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(*(("builtins.open", fail) if call == "open" else (f"os.{call}", fail)))
    cache = DiskCache(tmp_path)
    with pytest.warns(RuntimeWarning, match="PTXGEN_CACHE_DIR"):
        cache.put(b"a", b"1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(b"b", b"2")
    monkeypatch.undo()
    assert (cache.get(b"a"), cache.get(b"b")) == (b"1", b"2")
    assert list(tmp_path.iterdir()) == [], "no temporary is left behind"


def test_an_unreadable_entry_is_a_miss_with_one_warning(tmp_path):
    cache = DiskCache(tmp_path)
    cache.path(b"k").mkdir()
    with pytest.warns(RuntimeWarning, match="directory"):
        assert cache.get(b"k") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get(b"k") is None


def test_a_directory_that_cannot_be_made_means_memory_only(tmp_path):
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "below")
    with pytest.warns(RuntimeWarning):
        cache.put(b"k", b"v")
    assert cache.get(b"k") == b"v"


def test_off_never_touches_a_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = DiskCache(default_directory({"PTXGEN_CACHE_DIR": "off"}))
    cache.put(b"k", b"v")
    assert cache.get(b"k") == b"v"
    assert cache.path(b"k") is None
    assert list(tmp_path.iterdir()) == []


def test_the_directory_follows_the_environment():
    assert default_directory({"PTXGEN_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/x"}) == Path("/a/b")
    assert default_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/ptxgen")
    assert default_directory({"HOME": "/h"}).name == "ptxgen"
    assert Path("/h") in default_directory({"HOME": "/h"}).parents


def test_a_relative_directory_is_absolute_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_directory({"PTXGEN_CACHE_DIR": "cache"}) == tmp_path / "cache"
    assert default_directory({"XDG_CACHE_HOME": "x"}) == tmp_path / "x" / "ptxgen"
    assert tmp_path / "h" in default_directory({"HOME": "h"}).parents
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert default_directory({"PTXGEN_CACHE_DIR": "cache"}) is None


@pytest.mark.skipif(sys.platform == "win32", reason="users without an entry are a matter of POSIX")
def test_a_user_without_a_home_has_no_directory(monkeypatch):
    import pwd

    def unknown(user):
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert default_directory({}) is None
    assert default_directory({"PTXGEN_CACHE_DIR": "~/cache"}) is None
    assert default_directory({"PTXGEN_CACHE_DIR": "~no-such-user/cache"}) is None


@pytest.mark.parametrize(
    ("platform", "environment", "where"),
    [
        ("win32", {"LOCALAPPDATA": "/local", "HOME": "/h"}, "/local/ptxgen"),
        ("win32", {"HOME": "/h"}, "/h/AppData/Local/ptxgen"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches/ptxgen"),
        ("linux", {"HOME": "/h"}, "/h/.cache/ptxgen"),
    ],
)
def test_the_directory_is_where_the_platform_has_caches(monkeypatch, platform, environment, where):
    monkeypatch.setattr(sys, "platform", platform)
    assert default_directory(environment) == Path(where)


def test_nothing_is_created_before_the_first_put(tmp_path):
    cache = DiskCache(tmp_path / "new")
    assert cache.get(b"k") is None
    assert cache.size() == (0, 0)
    assert not (tmp_path / "new").exists()


def test_the_least_recently_used_entries_go_first(tmp_path):
    cache = DiskCache(tmp_path, cap_bytes=4000)
    for n in range(3):
        cache.put(b"%d" % n, bytes(1000))
        os.utime(cache.path(b"%d" % n), (n + 1, n + 1))
    assert cache.get(b"0") is not None  # a use makes it the newest
    cache.put(b"3", bytes(1000))
    assert cache.get(b"1") is None
    assert cache.get(b"0") is not None
    assert cache.get(b"3") is not None
    assert cache.size()[1] <= 4000


def test_a_payload_above_the_cap_is_not_written(tmp_path):
    cache = DiskCache(tmp_path, cap_bytes=100)
    cache.put(b"k", bytes(200))
    assert cache.get(b"k") == bytes(200)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"cap_bytes: must be at least 1 \(got 0\)"):
        DiskCache(tmp_path, cap_bytes=0)


def test_memory_is_capped_too():
    cache = DiskCache(None, cap_bytes=100)
    for n in range(10):
        cache.put(b"%d" % n, bytes(40))
    assert cache.size() == (2, 80)
    assert cache.get(b"9") is not None
    assert cache.get(b"0") is None


def test_temporaries_of_dead_processes_go_at_a_process_s_first_write(tmp_path):
    stale, fresh, foreign = (tmp_path / name for name in (".x.bin.1.ab.tmp", ".y.bin.1.ab.tmp", ".z.bin.old"))
    for path in (stale, fresh, foreign):
        path.write_bytes(b"")
    for path in (stale, foreign):
        os.utime(path, (time.time() - 7200,) * 2)
    DiskCache(tmp_path).put(b"k", b"v")
    assert not stale.exists()
    assert fresh.exists()
    assert foreign.exists()


HEAD = 52  # bytes of a file before its key


def hundred(n):
    """A key of two bytes and its payload: a file of a hundred bytes."""
    return b"%02d" % n, bytes(98 - HEAD)


def test_an_eviction_goes_down_to_nine_tenths(tmp_path):
    cache = DiskCache(tmp_path, cap_bytes=1000)
    for n in range(10):
        cache.put(*hundred(n))
    assert cache.size() == (10, 1000), "what fits is kept"
    cache.put(*hundred(10))
    assert cache.size() == (9, 900)


def test_an_entry_that_would_be_evicted_at_once_stays_in_memory(tmp_path):
    cache = DiskCache(tmp_path, cap_bytes=1000)
    cache.put(b"k", bytes(900 - HEAD - 1))
    assert cache.path(b"k").stat().st_size == 900
    cache.put(b"l", bytes(900 - HEAD))
    assert not cache.path(b"l").exists()
    assert cache.get(b"l") == bytes(900 - HEAD)
    assert cache.get(b"k") == bytes(900 - HEAD - 1)


def test_a_process_looks_after_more_than_a_sixteenth_of_the_cap_and_above_the_cap(tmp_path, monkeypatch):
    cache, looked, n = DiskCache(tmp_path, cap_bytes=1600), [], 0
    tidy = DiskCache._tidy

    def noted(self):
        assert self._lock.locked(), "two threads would count twice"
        looked.append(n)
        return tidy(self)

    monkeypatch.setattr(DiskCache, "_tidy", noted)
    for n in range(16):
        cache.put(*hundred(n))
    assert looked == [0, 2, 4, 6, 8, 10, 12, 14]
    assert DEFAULT_CAP_BYTES == 1 << 30, "docs/runtime.md says 1 GiB"


def test_a_temporary_is_stale_after_an_hour_and_not_before(tmp_path, monkeypatch):
    now = 1_000_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    young, old = tmp_path / ".young.bin.1.tmp", tmp_path / ".old.bin.1.tmp"
    for path, age in ((young, 3600), (old, 3601)):
        path.write_bytes(b"")
        os.utime(path, (now - age,) * 2)
    DiskCache(tmp_path).put(b"k", b"v")
    assert young.exists()
    assert not old.exists()


def test_what_is_synced_is_the_whole_entry(tmp_path, monkeypatch):
    sizes, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size) or sync(file))
    DiskCache(tmp_path).put(*hundred(0))
    assert sizes == [100]


def test_an_entry_of_nothing_under_no_key(tmp_path):
    DiskCache(tmp_path).put(b"", b"")
    assert DiskCache(tmp_path).get(b"") == b""
    DiskCache(None, cap_bytes=1).put(b"", b"")


def test_whether_there_is_an_entry(tmp_path):
    for cache in (DiskCache(None), DiskCache(tmp_path)):
        assert b"k" not in cache
        cache.put(b"k", b"v")
        assert b"k" in cache
        assert b"l" not in cache
    assert b"k" in DiskCache(tmp_path)


def test_memory_keeps_what_was_used_or_written_last():
    cache = DiskCache(None, cap_bytes=100)
    for key in (b"a", b"b"):
        cache.put(key, bytes(50))
    assert cache.size() == (2, 100), "what fits is kept"
    assert cache.get(b"a") is not None
    cache.put(b"c", bytes(50))
    assert (b"a" in cache, b"b" in cache) == (True, False)
    cache.put(b"a", bytes(50))
    cache.put(b"d", bytes(60))
    assert (b"a" in cache, b"c" in cache, b"d" in cache) == (False, False, True)
    cache.put(b"e", bytes(1000))
    assert cache.size() == (1, 1000), "one entry above the cap is kept until the next"


def test_an_entry_in_memory_that_is_written_again_is_the_latest():
    cache = DiskCache(None, cap_bytes=100)
    for key in (b"a", b"b", b"a", b"c"):
        cache.put(key, bytes(50))
    assert [key in cache for key in (b"a", b"b", b"c")] == [True, False, True]


def test_the_warning_names_the_directory_the_reason_and_the_line_that_asked(tmp_path, monkeypatch):
    for failure, said in ((PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
                          (OSError("odd"), "odd")):  # fmt: skip

        def fail(*_given, failure=failure, **_named):
            raise failure

        cache = DiskCache(tmp_path)
        monkeypatch.setattr(os, "stat", fail)
        with pytest.warns(RuntimeWarning) as caught:
            assert cache.get(b"k") is None
        monkeypatch.undo()
        assert str(caught[0].message).startswith(f"cache directory {tmp_path}: {said}; entries stay in memory")
        assert caught[0].filename == __file__


def test_clear_empties_disk_and_memory(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put(b"k", b"v")
    cache.clear()
    assert cache.get(b"k") is None
    assert cache.size() == (0, 0)
    cache = DiskCache(None)

    class Guarded(OrderedDict):
        def clear(self):
            assert cache._lock.locked(), "without the lock"
            super().clear()

    cache._memory = Guarded({b"k": b"v"})
    cache.clear()
    assert cache.size() == (0, 0)
