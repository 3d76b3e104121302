"""A kernel around an idiom: buffers, fragments and the body of a skeleton from a test, run on the CPU executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from ptxgen.builder import Builder
from ptxgen.generator import generate
from ptxgen.kernel import KernelType
from ptxgen.launch import Launch, Param
from ptxgen.targets import Target
from tests.support.demo_kernel import demo_template
from tests.support.devices import ExecutorDevice

_NUMBER = count()
_SKELETON = """{{% extends "entry.ptx.j2" %}}
{{% from "flow.ptx.j2" import when, loop, barrier, reduce, cluster_arrive, cluster_wait %}}
{{% block body %}}
{body}
{{% endblock %}}
"""


@dataclass(frozen=True)
class Idiom(KernelType):
    """`code(b)` builds the fragments; a launch has one CTA a cluster rank."""

    buffers: tuple[Param, ...]
    threads: int = 32
    cluster: int = 1
    number: int = field(default_factory=lambda: next(_NUMBER))  # no two are the same text
    code: Callable[[Builder], object] | None = field(default=None, compare=False)
    kernel_name = "idiom"

    def params(self) -> tuple[Param, ...]:
        return self.buffers

    def launch(self, target: Target) -> Launch:
        return Launch((self.cluster, 1, 1), (self.threads, 1, 1), cluster=(self.cluster, 1, 1))

    def build(self, b: Builder) -> None:
        assert self.code is not None
        self.code(b)


def text_of(spec: Idiom, body: str, target: str = "sm_90") -> str:
    """The PTX, with a skeleton of that body."""
    with demo_template(_SKELETON.format(body=body), "idiom"):
        return generate(spec, target).text


def run_idiom(
    spec: Idiom, body: str, *arrays: np.ndarray, target: str = "sm_90", mode: str = "check", seed: int = 1
) -> list[np.ndarray]:
    """What the buffers hold after a launch."""
    device = ExecutorDevice(mode, seed)
    there = [device.array(array) for array in arrays]
    kernel = device.module(text_of(spec, body, target))["idiom"]
    kernel.launch((spec.cluster, 1, 1), (spec.threads, 1, 1), there, cluster=(spec.cluster, 1, 1))
    return [array.numpy() for array in there]
