"""What the caches must not forget: what a key depends on, locks, forks, and where memory's shadows lie."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import fields, replace

import numpy as np
import pytest

import ptxgen
from ptxgen.errors import ExecutionError
from ptxgen.parity import ELEMENT_FACTOR, compare
from ptxgen.runtime.core.diskcache import DiskCache
from ptxgen.runtime.cpu.compile import support_objects
from ptxgen.runtime.cpu.compile.entry_cache import CompiledCache
from ptxgen.runtime.cpu.native import layout
from ptxgen.runtime.cpu.native.host import this_host
from ptxgen.runtime.cpu.run import global_memory
from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.support.cpu_run import run, text_of, u32
from tests.support.fake_cuda import fake_device
from tests.support.fake_spec import Generator, Sample

TEXT = text_of("st.global.u32 [%a0], 1; ret;", 1)


# keys of the object cache ---------------------------------------------------------------------------------------------
def keys(host=None, text=TEXT, check=False):
    host = host or this_host()
    cache = CompiledCache(CompiledCache.lazy(text, "f.ptx"), host)
    return cache._key("entry", "k", check), support_objects.of(host, check)._key("fault")


def test_keys_depend_on_the_sources_of_the_executor(monkeypatch):
    before = keys()
    monkeypatch.setattr(support_objects, "sources_digest", lambda: b"other sources")
    assert not set(before) & set(keys())


def test_the_digest_of_the_sources_is_of_every_file(tmp_path, monkeypatch):
    package = tmp_path / "runtime" / "cpu" / "compile"
    for folder in (package, tmp_path / "ptxgen" / "foreign", tmp_path / "ptxgen" / "parser" / "deep"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(support_objects, "__file__", str(package / "support_objects.py"))
    monkeypatch.setattr(ptxgen, "__file__", str(tmp_path / "ptxgen" / "__init__.py"))

    def digest():
        return support_objects.sources_digest.__wrapped__()

    seen = {digest()}
    counted = (package / "a.py", package.parent / "b.py", tmp_path / "ptxgen" / "foreign" / "c.py",
               tmp_path / "ptxgen" / "parser" / "deep" / "d.py")  # fmt: skip
    for path in counted:
        path.write_text("x = 1")
        seen.add(digest())
    (package.parent / "b.py").write_text("x = 2")
    seen.add(digest())
    assert len(seen) == 6
    for path in (tmp_path / "runtime" / "e.py", tmp_path / "ptxgen" / "f.py", package / "notes.txt"):
        path.write_text("x = 1")
    assert digest() in seen


@pytest.mark.parametrize("field", [field.name for field in fields(this_host())])
def test_keys_depend_on_everything_that_is_known_of_the_host(field):
    value = getattr(this_host(), field)
    other = replace(this_host(), **{field: (not value) if isinstance(value, bool) else "another"})
    assert not set(keys()) & set(keys(other))


def test_keys_depend_on_the_format_the_text_and_the_mode(monkeypatch):
    before = keys()
    assert before[0] != keys(text=TEXT + "\n")[0]
    assert not set(before) & set(keys(check=True))
    monkeypatch.setattr(layout, "FORMAT", -1)
    assert not set(before) & set(keys())


# the module cache -----------------------------------------------------------------------------------------------------
class Watched(dict):
    """A dictionary that may be changed only while its cache's lock is held."""

    def __init__(self, cache, given=()):
        super().__init__(given)
        self.cache, self.changes = cache, 0

    def _held(self):
        assert self.cache._lock.locked(), "changed without the lock"
        self.changes += 1

    def __setitem__(self, key, value):
        self._held()
        super().__setitem__(key, value)

    def setdefault(self, key, default=None):
        self._held()
        return super().setdefault(key, default)

    def pop(self, *key):
        self._held()
        return super().pop(*key)


def test_what_a_module_cache_knows_changes_under_its_lock_only(monkeypatch):
    monkeypatch.setattr("ptxgen.generator.generate", Generator())
    cache = fake_device()[0].modules
    cache._pending, cache._by_table = Watched(cache), Watched(cache)
    cache.load(Sample(dim=64))
    assert cache._pending.changes >= 2, "it becomes pending, and ends"
    assert cache._by_table.changes >= 2
    assert not cache._lock.locked()
    own, every = next(iter(cache._by_table.values()))
    before = [dict(own), dict(every)]
    assert Sample(dim=64) in before[0]


def test_nothing_is_pending_and_no_lock_is_held_after_a_fork(monkeypatch):
    """A thread that was loading, or held a lock, is not in the child."""
    monkeypatch.setattr("ptxgen.generator.generate", Generator())
    cache = fake_device()[0].modules
    kernel = cache.load(Sample(dim=64))
    cache._lock.acquire()
    cache._generating.acquire()
    key = (Sample(dim=32), cache.device.target, "table")
    cache._pending[key] = Future()
    cache._after_fork()
    assert cache._pending == {}
    assert cache.load(Sample(dim=64)) is kernel
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(cache.load(Sample(dim=32))), daemon=True)
    thread.start()
    thread.join(60)
    assert done, "a load waits for what died with the parent"


def test_memory_entries_change_under_the_lock_only_and_look_ups_are_counted():
    cache = DiskCache(None)

    class Guarded(OrderedDict):
        def move_to_end(self, *key, **how):
            assert cache._lock.locked(), "without the lock"
            super().move_to_end(*key, **how)

    cache._memory = Guarded()
    assert (cache.hits, cache.misses) == (0, 0)
    assert cache.get(b"k") is None
    assert (cache.hits, cache.misses) == (0, 1)
    cache.put(b"k", b"data")
    assert cache.get(b"k") == cache.get(b"k") == b"data"
    assert (cache.hits, cache.misses) == (2, 1)


def test_a_cache_that_is_read_only_leaves_its_directory_as_it_is(tmp_path):
    DiskCache(tmp_path).put(b"k", b"data")
    (path,) = tmp_path.iterdir()
    os.utime(path, (1, 1))
    cache = DiskCache(tmp_path)
    cache.read_only = True
    assert cache.get(b"k") == b"data"
    cache.put(b"l", b"more")
    assert cache.get(b"l") == b"more"
    path.write_bytes(b"damaged")
    os.utime(path, (1, 1))
    assert cache.get(b"k") is None
    assert [(p, p.stat().st_mtime) for p in tmp_path.iterdir()] == [(path, 1)]


def test_what_waits_for_a_fork_is_told_of_it():
    """Whatever holds a lock gets a free one in the child."""
    from ptxgen.runtime.cpu.native import fork_safety

    for made in (Memory(), support_objects.Library(this_host(), False)):
        before = made._lock
        before.acquire()
        fork_safety._after_fork()
        assert made._lock is not before
        assert made._lock.acquire(blocking=False)


def test_a_library_of_support_functions_changes_under_its_lock_only(monkeypatch):
    library = support_objects.Library(this_host(), False)
    seen = []

    def owned():
        return vars(type(library._lock))["_is_owned"](library._lock)

    def held(name):
        assert owned(), f"{name} without the lock"
        seen.append(name)

    class Watched(dict):
        def clear(self):
            held("clear")
            super().clear()

    monkeypatch.setattr(library, "_kept", lambda name, make: held(name) or b"object")
    monkeypatch.setattr(library, "_found", lambda name: held(name) or b"object")
    library._quick, library._good = Watched(), Watched()
    library.core()
    library.good(["fault"])
    library.quick(["fault"])
    library.distrust()
    assert seen == ["core", "fault", "fault", "clear", "clear"]
    assert not owned()


def test_objects_that_are_no_object_code_are_forgotten_and_compiled_again(monkeypatch):
    library = support_objects.Library(this_host(), False)
    junk = support_objects.Group(("fault",), b"junk", True)
    library._core, library._quick["fault"], library._good["fault"] = b"junk", junk, junk
    library.distrust()
    assert library.core().startswith(b"\x7fELF") or library.core() != b"junk"
    assert junk not in [*library.quick(["fault"]), *library.good(["fault"])]
    monkeypatch.setattr(support_objects, "of", lambda host, check: library)
    library._core, library._trusts_disk = b"junk", True
    support_objects.prepare(False)
    assert library._core == b"", "what does not link is not kept"


def test_an_adoption_with_an_owner_replaces_the_one_before_and_others_count():
    memory, first, second = Memory(), np.zeros(16, np.uint8), np.zeros(16, np.uint8)
    begin = first.ctypes.data
    memory.adopt(begin, 16, keep=first)
    memory.adopt(begin, 16, keep=second)
    assert len(rows_of(memory)) == 1
    memory.adopt(begin, 16)
    memory.adopt(begin, 16, keep=first)
    memory.disown(begin, 16)
    memory.free(begin)
    with pytest.raises(ExecutionError, match="were not adopted"):
        memory.disown(begin, 16)


def test_numbers_of_launches_come_round_after_the_last_one(monkeypatch):
    monkeypatch.setattr(global_memory, "_MOST_LAUNCHES", global_memory._FIRST_LAUNCH + 1)
    memory = Memory(track=True)
    numbers = [memory.begin_launch() for _ in range(5)]
    first = global_memory._FIRST_LAUNCH
    assert numbers == [first, first + 1, first, first + 1, first]


def test_a_disk_cache_has_a_lock_of_its_own_after_a_fork(tmp_path):
    from ptxgen.runtime.core import diskcache

    cache = DiskCache(tmp_path)
    cache._lock.acquire()
    diskcache._after_fork()
    assert not cache._lock.locked()


# judging results ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("factor", "fine"), [(0.9, True), (1.1, False), (9.0, False)])
def test_one_element_may_be_wrong_by_eight_limits_of_the_largest(factor, fine):
    """Where the buffer as a whole is right: among ten thousand elements one is lost in the norm."""
    want = np.ones(10_000)
    got = want.copy()
    got[77] += factor * 8.0 * 0.01
    verdict = compare("out", got, want, 0.01)
    assert verdict.error < 0.01
    assert verdict.ok is fine
    assert ELEMENT_FACTOR == 8.0


# shadows --------------------------------------------------------------------------------------------------------------
def rows_of(memory):
    begins, ends, shadows = (column.tolist() for column in memory.table()._columns[0])
    return list(zip(begins, ends, shadows, strict=True))


def test_views_inside_an_allocation_have_its_shadow_and_those_that_leave_it_have_none():
    memory = Memory(track=True)
    begin = memory.allocate(256)
    shadow = memory.find(begin).shadow.ctypes.data
    assert rows_of(memory) == [(begin, begin + 256, shadow)]
    memory.adopt(begin + 64, 64)
    memory.adopt(begin + 192, 64)
    assert rows_of(memory) == [(begin, begin + 256, shadow)]
    memory.adopt(begin + 128, 192)
    assert rows_of(memory) == [(begin, begin + 320, 0)]


def test_bytes_stay_as_initialised_as_their_source_was():
    memory = Memory(track=True)
    source, target = memory.allocate(64), memory.allocate(64)
    memory.written(source + 8, 8)
    memory.copied(target + 4, source, 32)
    flags = memory.find(target).shadow.tolist()
    assert [n for n, flag in enumerate(flags) if flag] == list(range(12, 20))
    memory.copied(target + 16, target + 8, 16)  # within one allocation, overlapping
    flags = memory.find(target).shadow.tolist()
    assert [n for n, flag in enumerate(flags) if flag] == list(range(12, 16)) + list(range(20, 28))


def test_check_mode_looks_at_the_shadow_of_the_array_under_a_view():
    memory = Memory(track=True)
    begin = memory.allocate(256)
    memory.adopt(begin + 64, 64)
    body = f"mov.u64 %rd1, {begin}; ld.global.u32 %r1, [%rd1+64]; st.global.u32 [%a0], %r1; ret;"
    with pytest.raises(ExecutionError, match=r"^read of uninitialised memory"):
        run(body, u32(1), block=1, mode="check", memory=memory)
    memory.written(begin, 256)
    run(body, u32(1), block=1, mode="check", memory=memory)
