"""What runtime objects print says what they are, and never an address of Python's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.kernels import ArgMax
from ptxgen.runtime import Batch, Model, open_device
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.core.launches.graph import Graph
from tests.support.fake_cuda import fake_device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

TEXT = ".version 7.0\n.target sm_80\n.address_size 64\n" + "".join(
    f".visible .entry e{n}()\n{{\n    ret;\n}}\n" for n in range(4)
)


def graph_of(device: Device, state: str) -> Graph:
    """A graph that is empty, captured, being captured, or has lost a buffer."""
    graph = device.graph()
    if state == "empty":
        return graph
    buffer = device.zeros(4, "f32")
    graph.__enter__()
    if state == "capturing":
        return graph
    buffer.copy_from(np.zeros(4, np.float32), graph.stream)
    graph.__exit__(None, None, None)
    if state == "dead":
        buffer.free()
    return graph


def batch_of(device: Device) -> Batch:
    """A batch of a small model, with one sequence."""
    spec = small_spec("llama")
    batch = Model(ArrayFile(spec, random_weights(spec)), device, "f32", chunk=8).batch(3)
    batch.join([1])
    return batch


REPRS: dict[str, tuple[Callable[[Device], Any], str]] = {
    "batch": (batch_of, r"Batch\(1 of 3 slots taken, <Model llama \d+ × \d+, .*, cpu>\)"),
    "module": (lambda d: d.module(TEXT), r"Module\(e0, e1, e2, …; cpu\)"),
    "entry": (lambda d: d.module(TEXT)["e1"], r"Entry\(e1, cpu\)"),
    "module cache": (lambda d: (d.load(ArgMax(32)), d.modules)[1], r"ModuleCache\(1 kernels, cpu\)"),
    "stream": (lambda d: d.stream(), r"\w+Stream\(0x0\)"),
    "event": (lambda d: d.stream().record(), r"ImmediateEvent\(at \d+\.\d{6} s\)"),
    "graph": (lambda d: graph_of(d, "empty"), r"\w+Graph\(0 nodes, cpu\)"),
    "captured graph": (lambda d: graph_of(d, "captured"), r"\w+Graph\(captured, cpu\)"),
    "capturing graph": (lambda d: graph_of(d, "capturing"), r"\w+Graph\(capturing, cpu\)"),
    "its stream": (lambda d: graph_of(d, "capturing").stream, r"\w+Stream\(0x0, capturing\)"),
    "graph without its buffer": (lambda d: graph_of(d, "dead"), r"\w+Graph\(a buffer it uses .* was freed, cpu\)"),
}


@pytest.mark.parametrize("what", REPRS)
def test_what_is_printed(what: str) -> None:
    make, said = REPRS[what]
    assert re.fullmatch(said, repr(make(open_device("cpu"))))


@pytest.mark.parametrize(("what", "said"), [("stream", r"CudaStream\(0x\w+ on cuda:0\)"),
                                            ("event", r"CudaEvent\(0x\w+ on cuda:0\)")])  # fmt: skip
def test_what_a_driver_has_a_handle_for_is_printed_with_it(what: str, said: str) -> None:
    device, _ = fake_device()
    stream = device.stream()
    assert re.fullmatch(said, repr(stream if what == "stream" else stream.record()))
