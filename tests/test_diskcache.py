"""Facts about the disk cache: damage, concurrency, failing file systems, eviction."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

from ptxgen.runtime.diskcache import DiskCache, default_directory, key_of


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


def test_temporaries_of_dead_processes_are_removed(tmp_path):
    cache = DiskCache(tmp_path, cap_bytes=2500)
    stale, fresh = tmp_path / ".x.bin.1.ab.tmp", tmp_path / ".y.bin.1.ab.tmp"
    stale.write_bytes(b"")
    fresh.write_bytes(b"")
    os.utime(stale, (time.time() - 7200,) * 2)
    for n in range(4):
        cache.put(b"%d" % n, bytes(1000))
    assert not stale.exists()
    assert fresh.exists()


def test_clear_empties_disk_and_memory(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put(b"k", b"v")
    cache.clear()
    assert cache.get(b"k") is None
    assert cache.size() == (0, 0)


def _payload(n):
    return hashlib.sha256(b"%d" % n).digest() * (20 + n % 50)


_WORKER = textwrap.dedent("""
    import hashlib, os, random, sys, time
    from pathlib import Path
    from ptxgen.runtime.diskcache import DiskCache
    seed, directory, keys = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    os.fsync = lambda fd: None
    cache = DiskCache(directory, cap_bytes=200_000)
    order = list(range(keys))
    random.Random(seed).shuffle(order)
    print("ready", flush=True)
    for n in order:
        want = hashlib.sha256(b"%d" % n).digest() * (20 + n % 50)
        got = cache.get(b"%d" % n)
        if got is None:
            cache.put(b"%d" % n, want)
            got = cache.get(b"%d" % n) or want
        assert got == want, n
    print("done", flush=True)
""")


def test_many_processes_on_one_directory_and_kills_among_them(tmp_path):
    def start(seed):
        command = [sys.executable, "-c", _WORKER, str(seed), str(tmp_path), "200"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    workers = [start(seed) for seed in range(16)]
    doomed = workers[::4]
    for worker in doomed:
        assert worker.stdout.readline() == "ready\n"
        time.sleep(0.005)
        worker.send_signal(signal.SIGKILL)
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        if worker not in doomed:
            assert worker.returncode == 0, err
            assert "done" in out
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = DiskCache(tmp_path, cap_bytes=200_000)
        found = {n: cache.get(b"%d" % n) for n in range(200)}
    assert cache.hits > 0
    assert all(payload in (None, _payload(n)) for n, payload in found.items())
