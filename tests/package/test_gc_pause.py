"""Garbage collection pauses, and runs again."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from ptxgen.gc_pause import GcPause


def test_it_runs_again_after_the_last_context() -> None:
    """The first that begins ends first, as contexts of two threads may."""
    first, second = GcPause(), GcPause()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert not gc.isenabled()
    second.__exit__()
    assert gc.isenabled()


def test_one_that_did_not_run_stays_off() -> None:
    gc.disable()
    try:
        with GcPause():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_runs_after_an_exception() -> None:
    with pytest.raises(KeyError), GcPause():
        raise KeyError
    assert gc.isenabled()


def test_it_runs_in_a_child_of_a_process_whose_other_thread_rests() -> None:
    entered, ends = threading.Event(), threading.Event()

    def rest() -> None:
        with GcPause():
            entered.set()
            ends.wait(30)

    thread = threading.Thread(target=rest)
    thread.start()
    try:
        assert entered.wait(30)
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ends.set()
        thread.join()
    assert gc.isenabled()
