"""Facts about the disk cache: damage, concurrency, failing file systems, eviction."""

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
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


@pytest.mark.parametrize("size", [2000, 30_000])
def test_the_cap_holds_over_processes(tmp_path, size):
    """Each of which sees what the others wrote when it has written a sixteenth of the cap itself."""
    processes = [DiskCache(tmp_path, cap_bytes=100_000) for _ in range(4)]
    for one in processes:
        one.put(b"first", b"")
    most = 0
    for n in range(2 * 100_000 // size):
        processes[n % 4].put(b"%d" % n, bytes(size))
        most = max(most, processes[0].size()[1]) if n % 25 == 0 or size > 1000 else most
    assert 50_000 < most <= 100_000 * (1 + 3 / 16)


def test_a_process_looks_seldom_at_what_others_wrote(tmp_path, monkeypatch):
    cache, looks = DiskCache(tmp_path, cap_bytes=1_000_000), []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or scandir(path))
    for n in range(100):
        cache.put(b"%d" % n, bytes(1000))
    assert 1 < len(looks) < 4


def test_a_fork_while_a_thread_holds_the_lock_leaves_the_childs_cache_usable(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put(b"k", b"v")
    with cache._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            os._exit(0 if cache.get(b"k") == b"v" else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


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


def _payload(n):
    return hashlib.sha256(b"%d" % n).digest() * (20 + n % 50)


# One process: 200 keys in an order of its own; some calls of the system fail, and some processes are killed in them.
_WORKER = textwrap.dedent("""
    import builtins, errno, hashlib, io, os, random, signal, sys, warnings
    from pathlib import Path
    from ptxgen.runtime.core.diskcache import DiskCache
    seed, directory, keys, kill_at = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    chance, calls = random.Random(seed), []
    FAULTS = [errno.EBUSY, errno.ENOENT, errno.ESTALE, errno.EACCES]

    def faulty(name, real):
        def call(*args, **kwargs):
            mine = any(str(directory) in str(a) for a in args) or name == "fsync"
            if mine:
                calls.append(name)
                if len(calls) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if chance.random() < 0.05:
                    number = chance.choice(FAULTS)
                    raise OSError(number, os.strerror(number))
            return real(*args, **kwargs) if name != "fsync" else None
        return call

    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "fsync"), (os, "replace"), (os, "utime"),
                         (os, "unlink"), (os, "scandir"), (os, "mkdir")):
        setattr(module, name, faulty(name, getattr(module, name)))
    warnings.simplefilter("ignore")
    cache = DiskCache(directory, cap_bytes=200_000)
    order = list(range(keys))
    random.Random(seed).shuffle(order)
    for n in order:
        want = hashlib.sha256(b"%d" % n).digest() * (20 + n % 50)
        got = cache.get(b"%d" % n)
        if got is None:
            cache.put(b"%d" % n, want)
            got = cache.get(b"%d" % n) or want
        assert got == want, n
    print("done", len(calls), flush=True)
""")
KILLED = {0: 60, 4: 111, 8: 162, 12: 233}  # seed: at which call of the system


def test_many_processes_on_one_directory_with_faults_and_kills_among_them(tmp_path):
    """16 processes, 200 keys; EBUSY, ENOENT, ESTALE, EACCES anywhere; four are killed amid a system call."""

    def start(seed):
        command = [sys.executable, "-c", _WORKER, str(seed), str(tmp_path), "200", str(KILLED.get(seed, 0))]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    for seed, worker in enumerate([start(seed) for seed in range(16)]):
        out, err = worker.communicate(timeout=120)
        if seed in KILLED:
            assert worker.returncode == -signal.SIGKILL, err
        else:
            assert worker.returncode == 0, err
            assert int(out.removeprefix("done ")) > 400, "the faults were among this many calls"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = DiskCache(tmp_path, cap_bytes=200_000)
        found = {n: cache.get(b"%d" % n) for n in range(200)}
    assert cache.hits > 0
    assert all(payload in (None, _payload(n)) for n, payload in found.items())


@pytest.mark.parametrize("stage", ["open", "fsync", "replace"])
def test_a_process_killed_while_it_writes_leaves_no_entry(tmp_path, stage):
    code = f"""
import builtins, os, signal
from pathlib import Path
from ptxgen.runtime.core.diskcache import DiskCache
where = {{"open": builtins, "fsync": os, "replace": os}}[{stage!r}]
setattr(where, {stage!r}, lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL))
DiskCache(Path({str(tmp_path)!r})).put(b"k", b"payload")
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = DiskCache(tmp_path)
        assert cache.get(b"k") is None
        cache.put(b"k", b"payload")
        assert DiskCache(tmp_path).get(b"k") == b"payload"


# who may write there --------------------------------------------------------------------------------------------------
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
