"""Facts about the host's compiler: forks while it works, and the pieces of address space that linked code takes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest

from ptxgen.errors import ModuleLoadError
from ptxgen.runtime import open_device
from ptxgen.runtime.cpu.native import host
from tests.support.cpu_run import text_of


def test_an_interrupt_does_not_wait_for_the_compiler(monkeypatch):
    """Of a long text, in the main thread; a short one is compiled where it is asked for."""
    began, end, threads = threading.Event(), threading.Event(), []

    def slow(text, _host, _level):
        threads.append(threading.current_thread())
        if len(text) > 10:
            began.set()
            assert end.wait(60)
        return b"code"

    def interrupt():
        assert began.wait(60)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # the kernel may choose any thread: the worst for us

    monkeypatch.setattr(host, "_compiled", slow)
    monkeypatch.setattr(host, "_LONG_TEXT", 11)
    assert host.compile_ir("short", host.this_host()) == b"code"
    assert threads.pop() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            host.compile_ir("a long text", host.this_host())
        assert threads[0].is_alive()
    finally:
        end.set()
        other.join()
        threads[0].join()
        signal.signal(signal.SIGINT, before)
    assert host.compile_ir("a long text", host.this_host()) == b"code"
    monkeypatch.setattr(host, "_compiled", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        host.compile_ir("a long text", host.this_host())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
def test_a_fork_waits_for_llvmlite_wherever_its_lock_was_taken():
    """Its finalisers, too, call into LLVM, in any thread: a child could never take a lock that one of them held."""
    code = textwrap.dedent("""
        import os, signal, threading, time
        from ptxgen.runtime.cpu.native.host import compile_ir, this_host
        host, taken = this_host(), threading.Event()
        import llvmlite.binding as llvm
        module = llvm.parse_assembly("define void @f() { ret void }")
        dispose = type(module)._dispose
        def slowly(self):
            with llvm.ffi.lib._lock:
                taken.set()
                time.sleep(0.3)
                dispose(self)
        type(module)._dispose = slowly
        other = threading.Thread(target=module.close)
        other.start()
        taken.wait()
        child = os.fork()
        if not child:
            signal.alarm(10)
            assert compile_ir("define void @g() { ret void }", host)
            os._exit(0)
        other.join()
        assert os.waitpid(child, 0)[1] == 0
        assert compile_ir("define void @h() { ret void }", host)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="this system does not say what it has mapped")
def test_linked_code_takes_no_more_mappings_than_are_counted_for_it(monkeypatch):
    """LLVM makes them one by one for each object, and ends the process where there are no more."""
    taken: list[int] = []
    monkeypatch.setattr(host, "_mappings", host.Mappings(1 << 30, lambda: 0))
    take = host.Mappings.take
    monkeypatch.setattr(host.Mappings, "take", lambda self, n: taken.append(n) or take(self, n))
    device, text = open_device("cpu"), text_of("ret;", 0)
    mapped = host._mappings_of_this_system()._count
    device.module(text)["k"]
    gc.collect()  # else modules of other tests give theirs back meanwhile
    before, counted = mapped(), sum(taken)
    kept = [device.module(text)["k"] for _ in range(50)]
    assert 50 < mapped() - before <= sum(taken) - counted
    del kept
    assert mapped() < before + 50, "dropped modules give theirs back"


def test_mappings_are_counted_again_only_when_those_known_to_be_free_are_used_up():
    counts: list[int] = []

    def count() -> int:
        counts.append(0)
        return 300 if len(counts) < 4 else 0

    mappings = host.Mappings(320 * 16 // 15, count)  # of 341 a sixteenth is for others
    for _ in range(2):
        mappings.take(10)
    assert len(counts) == 1
    with pytest.raises(ModuleLoadError, match=r"takes up to 30 memory mappings; 20 are free of the 341"):
        mappings.take(30)
    mappings.take(30)
    assert len(counts) == 4, "something was dropped meanwhile"


def test_what_only_the_collector_can_free_is_freed_before_mappings_are_refused():
    class Held:
        """One of a cycle that holds everything."""

    alive: weakref.WeakSet[Held] = weakref.WeakSet()
    mappings = host.Mappings(16 * 20, lambda: 300 * len(alive))  # 300 beside the reserve
    gc.disable()
    try:
        one = Held()
        one.itself = one  # type: ignore[attr-defined]
        alive.add(one)
        with pytest.raises(ModuleLoadError, match="0 are free"):
            mappings.take(10)
        del one
        mappings.take(10)
    finally:
        gc.enable()


def test_a_kernel_too_many_is_an_error_and_leaves_the_device_usable(monkeypatch):
    device = open_device("cpu")
    monkeypatch.setattr(host, "_mappings", host.Mappings(1000, lambda: 1000))
    with pytest.raises(ModuleLoadError, match="too many kernels are loaded"):
        device.module(text_of("ret;", 0))["k"]
    monkeypatch.undo()
    device.module(text_of("ret;", 0))["k"].launch(1, 32)


def test_kernels_share_a_linker_and_nothing_else(monkeypatch):
    """A linker takes half a millisecond; code that is dropped leaves the others' as it was."""
    device, out = open_device("cpu"), np.zeros(1, np.uint32)
    kernels = {n: device.module(text_of(f"mov.u32 %n, {n}; st.global.u32 [%a0], %n;", 1))["k"] for n in (1, 2)}
    made: list[object] = []
    monkeypatch.setattr(host._llvm(), "create_lljit_compiler", made.append)
    kernels[3] = device.module(text_of("mov.u32 %n, 3; st.global.u32 [%a0], %n;", 1))["k"]
    assert not made
    while kernels:
        for number, kernel in kernels.items():
            kernel.launch(1, 1, [out])
            assert out[0] == number
        del kernels[min(kernels)]


def test_loading_from_the_object_cache_imports_nothing(tmp_path):
    """All of it is there once a device is open."""
    code = textwrap.dedent(f"""
        import sys
        from ptxgen.runtime import open_device
        device = open_device("cpu")
        before = set(sys.modules)
        device.module({text_of("ret;", 0)!r})["k"].bind(1, 32)
        print(sorted(name for name in set(sys.modules) - before))
    """)
    environment = {**os.environ, "PTXGEN_CACHE_DIR": str(tmp_path)}
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
            for _ in range(2)]  # fmt: skip
    assert "ptxgen.parser" in runs[0].stdout
    assert runs[1].stdout == "[]\n"
