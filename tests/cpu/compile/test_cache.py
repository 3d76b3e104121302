"""Facts about compiled entries: what is kept on disk, what is compiled when, what is linked."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, IsaError, ModuleLoadError, VersionWarning
from ptxgen.parser import parse
from ptxgen.runtime import open_device
from ptxgen.runtime.core.diskcache import DiskCache
from ptxgen.runtime.cpu import program
from ptxgen.runtime.cpu.compile import entry_cache, support_objects
from ptxgen.runtime.cpu.native.host import this_host
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.support.cpu_run import run, text_of


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A cache of this test's own."""
    made = DiskCache(tmp_path / "cpu", suffix=".ptxobj")
    monkeypatch.setattr(support_objects, "disk", lambda: made)
    support_objects.of.cache_clear()
    yield made
    support_objects.of.cache_clear()


TEXT = text_of(
    "add.u64 %rd1, %a0, %at4; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 5; st.global.u32 [%rd1], %r1; ret;", 1
)


def launch_text(text=TEXT, mode="fast", host=None):
    memory, out = Memory(), np.arange(32, dtype=np.uint32)
    program = Program.from_text(text, "cached.ptx", mode=mode, threads=1, host=host)
    program.launch("k", 1, 32, [memory.register(out)], memory=memory)
    return out


def test_a_second_program_neither_parses_nor_compiles(disk, monkeypatch):
    first = launch_text()

    def never(*_args, **_kwargs):
        raise AssertionError("must come from the cache")

    monkeypatch.setattr("ptxgen.parser.parse", never)
    monkeypatch.setattr(entry_cache, "compile_ir", never)
    monkeypatch.setattr(support_objects, "compile_ir", never)
    support_objects.of.cache_clear()
    np.testing.assert_array_equal(launch_text(), first)
    np.testing.assert_array_equal(first, np.arange(32) + 5)


def test_modes_texts_and_hosts_do_not_share_entries(disk):
    def keys():
        launch_text()
        entries = disk.size()[0]
        launch_text()
        assert disk.size()[0] == entries
        return entries

    one = keys()
    launch_text(mode="check")
    two = disk.size()[0]
    launch_text(TEXT + "// another text\n")
    three = disk.size()[0]
    launch_text(host=replace(this_host(), versions="another LLVM"))
    assert one < two < three < disk.size()[0]


def test_findings_of_a_cached_program_have_their_text(disk):
    text = text_of("ld.global.u32 %r1, [%a0+128]; ret;", 1)
    for _ in range(2):
        with pytest.raises(ExecutionError, match=r"cached.ptx:\d+: ld.global.u32 %r1, \[%a0\+128\]; ret;"):
            launch_text(text)


def test_code_that_ran_for_a_while_is_optimised_and_kept(disk, monkeypatch):
    levels = []
    compile_ir = vars(support_objects)["compile_ir"]

    def kept(*arguments: Any, level: int) -> Any:
        levels.append(level)
        return compile_ir(*arguments, level=level)

    monkeypatch.setattr(support_objects, "compile_ir", kept)
    memory, out = Memory(), np.arange(32, dtype=np.uint32)
    program = Program.from_text(TEXT, "cached.ptx", threads=1)
    place = [memory.register(out)]
    for seconds, optimised in ((3600.0, False), (0.0, True), (0.0, True)):
        monkeypatch.setattr("ptxgen.runtime.cpu.run.compiled.IMPROVE_SECONDS", seconds)
        program.launch("k", 1, 32, place, memory=memory)
        assert (1 in levels) is optimised
    np.testing.assert_array_equal(out, np.arange(32) + 15)
    once = len(levels)
    support_objects.of.cache_clear()
    launch_text()
    other = TEXT.replace("5;", "6;")  # finds its functions optimised
    np.testing.assert_array_equal(launch_text(other), np.arange(32) + 6)
    assert len(levels) == once


def test_functions_compiled_together_are_linked_with_what_they_call(disk):
    wide = text_of("and.b64 %rd1, %at4, 112; add.u64 %rd1, %rd1, %a0; "
                   "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]; add.u64 %rd1, %a0, %at4; "
                   "ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; ret;", 1)  # fmt: skip
    launch_text(wide)
    np.testing.assert_array_equal(launch_text(), np.arange(32) + 5)
    assert support_objects.of(this_host(), False).quick(["ld.global.v1.b32"])[0].good is False


def test_the_optimised_entry_takes_the_place_of_the_first_on_disk(disk):
    cache = entry_cache.CompiledCache(entry_cache.CompiledCache.lazy(TEXT, "cached.ptx"), this_host())
    objects, _ = cache.load("k", False)
    key = cache._key("entry", "k", False)
    assert not entry_cache.Objects.from_bytes(disk.get(key)).good
    better, _ = cache.improve(objects, False)
    assert better.good
    assert entry_cache.Objects.from_bytes(disk.get(key)) == better


@pytest.mark.parametrize(
    "wrong", [ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error, RuntimeError]
)
def test_an_entry_that_cannot_be_read_is_compiled_again(disk, monkeypatch, wrong):
    first = launch_text()

    def fail(_data):
        raise wrong("damaged")

    monkeypatch.setattr(entry_cache.Objects, "from_bytes", fail)
    np.testing.assert_array_equal(launch_text(), first)


def test_long_functions_are_optimised_for_their_frames():
    assert entry_cache._level("\n" * 49_999) == 0
    assert entry_cache._level("\n" * 50_000) == 1


def test_the_text_of_a_module_is_its_source_or_what_it_prints():
    parsed = parse(TEXT, "a.ptx")
    assert entry_cache.CompiledCache(parsed, this_host()).text == TEXT
    made = replace(parsed, source="")
    assert entry_cache.CompiledCache(made, this_host()).text == str(made)


def test_a_newer_version_is_warned_of(disk):
    with pytest.warns(VersionWarning, match=r"\.version 9\.9"):
        open_device("cpu").module(TEXT.replace(".version 8.6", ".version 9.9"))["k"]


def test_what_is_refused_is_not_counted_either(disk):
    good = TEXT.partition(".visible")[1] + TEXT.partition(".visible")[2]
    bad = good.replace(" k(", " bad(").replace("add.u32 %r1, %r1, 5", "add.u33 %r1, %r1, 5")
    text = entry_cache.CompiledCache.lazy(TEXT + bad, "two.ptx", verify=True)
    cache = entry_cache.CompiledCache(text, this_host())
    assert cache.entries() == ("k", "bad")
    with pytest.raises(IsaError, match=r"add\.u33"):
        cache.counting("bad")
    entry, _, _ = cache.counting("k")
    assert entry.name == "k"


def test_foreign_text_is_checked_once(disk, monkeypatch):
    checks = []
    from ptxgen import checks as module

    check = module.check
    monkeypatch.setattr(module, "check", lambda parsed: checks.append(1) or check(parsed))
    for _ in range(2):
        open_device("cpu").module(TEXT)["k"]
        assert len(checks) == 1
    wrong = TEXT.replace("add.u32", "add.u33")
    for _ in range(2):
        with pytest.raises(ModuleLoadError, match=r"add\.u33"):
            open_device("cpu").module(wrong)["k"]


def test_a_launch_that_does_not_check_is_linked_with_nothing_of_check_mode():
    async_copies = text_of("""
      mbarrier.init.shared::cta.b64 [bar], 1; cp.async.ca.shared.global [tile], [%a0], 16; cp.async.wait_all;
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%a0], 16, [bar];
      cp.async.bulk.global.shared::cta.bulk_group [%a0], [tile], 16; cp.async.bulk.wait_group 0;
      mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; bar.sync 0;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      ret;""", 1, ".shared .align 128 .b8 tile[128]; .shared .align 8 .b64 bar;")  # fmt: skip
    compiled = entry_cache.CompiledCache(entry_cache.CompiledCache.lazy(async_copies, "x.ptx"), this_host())
    ours = {check: compiled.load("k", check)[0].names for check in (False, True)}
    of_checking = ("race", "shadow", "watch", "async.append", "async.land")
    assert not [name for name in ours[False] if name.startswith(of_checking)]
    assert [name for name in ours[True] if name.startswith("race")]


def test_code_is_optimised_while_others_launch_it(disk, monkeypatch):
    monkeypatch.setattr("ptxgen.runtime.cpu.run.compiled.IMPROVE_SECONDS", 1e-4)
    program = Program.from_text(TEXT, "cached.ptx", threads=1)

    def one(_):
        memory, out = Memory(), np.arange(32, dtype=np.uint32)
        program.launch("k", 1, 32, [memory.register(out)], memory=memory)
        return (out == np.arange(32) + 5).all()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(60)))
    assert program.compiled("k", False)._objects.good


@pytest.mark.parametrize("mode", program.MODES)
def test_nans_that_cross_blocks_are_canonical_where_their_bits_are_seen(mode):
    """`%f2` is read by arithmetic alone between the loop's turns, `%f3` is stored, `%f5` by way of a shuffle; all hold
    a NaN of the host."""
    out = np.zeros(128, np.uint32)
    run("""
      mov.f32 %f1, 0fFF800000; mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f3F800000; mov.u32 %r1, 0;
      again: fma.rn.f32 %f2, %f1, 0f00000000, %f2; sub.f32 %f3, %f1, %f1; add.f32 %f2, %f2, %f3;
      add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 3; @%p1 bra again;
      mul.f32 %f4, %f2, 0f40000000; setp.nan.f32 %p2, %f2, %f2;
      @!%p2 mov.f32 %f4, 0f00000000; add.u64 %rd1, %at8, %at8; add.u64 %rd1, %a0, %rd1;
      sub.f32 %f5, %f1, %f1; sub.f32 %f7, %f1, %f1; bar.sync 0;
      shfl.sync.bfly.b32 %f6, %f5, 1, 31, -1; shfl.sync.bfly.b32 %f8, %f7, 1, 31, -1; bar.sync 0;
      selp.f32 %f9, %f8, 0f3F800000, %p2; bar.sync 0; add.f32 %f9, %f9, 0f3F800000;
      st.global.v4.f32 [%rd1], {%f3, %f4, %f6, %f9}; ret;
      """, out, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, np.full(128, 0x7FFFFFFF, np.uint32))


def test_damaged_entries_are_compiled_again(disk):
    want = launch_text()
    for path in disk.directory.iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data))
    support_objects.of.cache_clear()
    np.testing.assert_array_equal(launch_text(), want)


def test_a_directory_that_cannot_be_used_costs_one_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    broken = DiskCache(tmp_path / "file" / "cpu")
    monkeypatch.setattr(support_objects, "disk", lambda: broken)
    with pytest.warns(RuntimeWarning, match="entries stay in memory"):
        launch_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch_text(mode="check")


def test_two_processes_share_the_cache(tmp_path):
    code = textwrap.dedent(f"""
        import numpy as np, sys
        from ptxgen.runtime.cpu import program
        from ptxgen.runtime.cpu.compile import entry_cache, support_objects
        if sys.argv[1] == "second":
            def never(*a, **k): raise AssertionError("must come from the cache")
            entry_cache.compile_ir = support_objects.compile_ir = never
        from ptxgen.runtime.cpu.program import Program
        from ptxgen.runtime.cpu.run.global_memory import Memory
        memory, out = Memory(), np.arange(32, dtype=np.uint32)
        Program.from_text({TEXT!r}, threads=1).launch("k", 1, 32, [memory.register(out)], memory=memory)
        assert (out == np.arange(32) + 5).all()
    """)
    for which in ("first", "second"):
        environment = {"PTXGEN_CACHE_DIR": str(tmp_path), "PYTHONPATH": "."}
        done = subprocess.run([sys.executable, "-c", code, which], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("junk", [b"", b"no object", b"\x7fELF" + bytes(200)])
def test_what_loads_not_is_compiled_again_whatever_its_checksum(disk, junk):
    want = launch_text()
    for check in (False, True):
        support_objects.of(this_host(), check).good(["fault"])
    for path in list(disk.directory.iterdir()):
        _, length, _, _ = struct.unpack_from("<8sIQ32s", path.read_bytes())
        key = path.read_bytes()[52 : 52 + length]
        path.unlink()
        disk.put(key, junk)
    for mode in ("fast", "check"):
        support_objects.of.cache_clear()
        np.testing.assert_array_equal(launch_text(mode=mode), want)
    open_device("cpu")
