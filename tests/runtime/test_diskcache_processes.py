"""The disk cache of several processes: its cap, forks, kills, faults of the file system among them."""

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import warnings

import pytest

from ptxgen.runtime.core.diskcache import DiskCache


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
