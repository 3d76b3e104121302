"""A kernel type of three fragments, not registered, whose code and template a test may replace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import ChoiceLoader, FileSystemLoader

from ptxgen import packages
from ptxgen.builder import Builder
from ptxgen.dtypes import f32
from ptxgen.kernel import KernelType
from ptxgen.launch import Launch, Param, buffer
from ptxgen.render import environment
from ptxgen.targets import Target

TEMPLATE = """{% extends "entry.ptx.j2" %}
{% from "flow.ptx.j2" import when %}
{% block body %}
{{ locate }}
{% call when(inside, "bounds") %}
{{ load }}
{{ store }}
{% endcall %}
{% endblock %}
"""


@dataclass(frozen=True)
class Demo(KernelType):
    """x[i] = x[i] + 1 for i < n. `more` appends to the fragment `load`."""

    n: int = 100
    more: Callable[[Builder], object] | None = field(default=None, compare=False)
    kernel_name = "demo"

    def params(self) -> tuple[Param, ...]:
        return (buffer("x", f32, self.n, access="inout"),)

    def launch(self, target: Target) -> Launch:
        return Launch((1, 1, 1), (128, 1, 1))

    def build(self, b: Builder) -> None:
        with b.fragment("locate"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            b.op("setp.lt.u32", "inside", thread, self.n)
        with b.fragment("load"):
            x = b.ld_param("x")
            b.op("mad.wide.u32", x, thread, 4, x)
            value = b.op("ld.global.f32", "value", x[0])
            b.op("add.f32", value, value, 1.0)
            if self.more is not None:
                self.more(b)
        with b.fragment("store"):
            b.op("st.global.f32", x[0], value)


@contextmanager
def demo_template(text: str = TEMPLATE, name: str = "demo") -> Iterator[None]:
    """Give the renderer this text for `demo.ptx.j2`, or for another name."""
    env = environment()
    loader = env.loader
    assert loader is not None
    assert env.cache is not None
    with TemporaryDirectory() as folder:
        Path(folder, f"{name}.ptx.j2").write_text(text)
        env.loader = ChoiceLoader([FileSystemLoader(folder), loader])
        env.cache.clear()
        packages._FOLDERS[Path(folder)] = __name__  # where messages look for the line that places a fragment
        try:
            yield
        finally:
            del packages._FOLDERS[Path(folder)]
            env.loader = loader
            env.cache.clear()
