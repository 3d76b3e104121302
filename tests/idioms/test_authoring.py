"""What an author writes with the idioms: an RMS norm and an f16 matrix-vector product, short, and right at once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ptxgen import rules
from ptxgen.builder import Builder
from ptxgen.dtypes import f16, f32
from ptxgen.generator import generate
from ptxgen.idioms.dot import dot
from ptxgen.idioms.elements import pieces, widen
from ptxgen.idioms.reduce import over_cta, over_warp
from ptxgen.idioms.row_kernel import RowKernel
from ptxgen.idioms.rows import RowShare, RowWalk
from ptxgen.kernel import KernelType
from ptxgen.launch import Launch, Param, buffer
from ptxgen.targets import Target
from tests.support.cpu_run import MODES
from tests.support.demo_kernel import demo_template
from tests.support.devices import ExecutorDevice


@dataclass(frozen=True)
class PlainNorm(RowKernel, KernelType):
    """out = x / sqrt(mean(x²) + eps) · weight."""

    dim: int = 64
    eps: float = 1e-6
    programmatic: bool = False
    kernel_name = "plain_norm"

    def rules(self) -> Iterator[str]:
        yield from rules.between("dim", self.dim, 1, 1 << 20)

    def params(self) -> tuple[Param, ...]:
        return self.row("x"), self.common("weight"), self.row("out", access="out")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        values, gains, total = rows.array("value"), rows.array("gain"), b.reg("total", "f32")
        with b.fragment("begin"):
            b.op("mov.f32", total, 0.0)
        with b.fragment("load"):
            rows.step()
            rows.load("x", values)
            dot(b, total, values, values)
            rows.advance("more_squares")
        over_cta(b, "squares", "add.f32", [total], rows.thread, self.share.warps)
        with b.fragment("mean"):
            b.op("fma.rn.f32", total, total, 1 / self.dim, self.eps)
            b.op("rsqrt.approx.f32", total, total)
            rows.begin()
        with b.fragment("scale"):
            rows.step()
            rows.load("x", values)
            rows.load("weight", gains)
            for value, gain in zip(values, gains, strict=True):
                b.op("mul.f32", value, value, total)
                b.op("mul.f32", value, value, gain)
            rows.store("out", values)
            rows.advance("more_outputs")

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        x = a["x"].astype(np.float64)
        factor = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return {"out": (x * factor * a["weight"]).astype(np.float32)}


PLAIN_NORM = """{% extends "entry.ptx.j2" %}
{% from "flow.ptx.j2" import loop, reduce %}
{% block body %}
{{ locate }}
{{ begin }}
{% call loop("squares", more_squares) %}
{{ load }}
{% endcall %}
{{ reduce(squares) }}
{{ mean }}
{% call loop("outputs", more_outputs) %}
{{ scale }}
{% endcall %}
{% endblock %}
"""


@dataclass(frozen=True)
class HalfGemv(KernelType):
    """y = w x: w f16 `[n, k]`, x f16 `[k]`, y f32 `[n]`; a warp takes a row."""

    n: int = 8
    k: int = 64
    kernel_name = "half_gemv"

    def params(self) -> tuple[Param, ...]:
        out = buffer("y", f32, self.n, access="out", align=4)
        return buffer("w", f16, self.n, self.k), buffer("x", f16, self.k), out

    def launch(self, target: Target) -> Launch:
        return Launch((-(-self.n // 4), 1, 1), (128, 1, 1))

    def build(self, b: Builder) -> None:
        share = RowShare(self.k, 8, 32, 2)
        walk, total = RowWalk(b, share), b.reg("total", "f32")
        weights, inputs = (b.array(name, "f32", share.elements) for name in ("weight", "input"))
        with b.fragment("locate"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            lane = b.op("and.b32", "lane", thread, 31)
            row = b.op("shr.u32", "row", thread, 5)
            b.op("mad.lo.u32", row, b.op("mov.u32", "cta", b.special("ctaid.x")), 4, row)
            b.op("setp.lt.u32", "inside", row, self.n)
            w, x, y = (b.ld_param(name) for name in "wxy")
            b.op("mad.wide.u32", w, row, 2 * self.k, w)
            b.op("mov.f32", total, 0.0)
            walk.begin(lane)
        with b.fragment("multiply"):
            walk.step()
            for name, base, values in (("w", w, weights), ("x", x, inputs)):
                parts = pieces(b, f"{name}_words", f16, values, share.vector)
                walk.load(walk.at(f"{name}_at", base, f16.bytes), parts)
                widen(b, parts, values)
            dot(b, total, weights, inputs)
            walk.advance("again")
        with b.fragment("finish"):
            over_warp(b, "add.f32", total)
            b.op("mad.wide.u32", y, row, f32.bytes, y)
            b.op("st.global.f32", y[0], total, pred=b.op("setp.eq.u32", "first", lane, 0))

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        return {"y": (a["w"].astype(np.float64) @ a["x"].astype(np.float64)).astype(np.float32)}


HALF_GEMV = """{% extends "entry.ptx.j2" %}
{% from "flow.ptx.j2" import loop, when %}
{% block body %}
{{ locate }}
{% call when(inside, "row_exists") %}
{% call loop("columns", again) %}
{{ multiply }}
{% endcall %}
{{ finish }}
{% endcall %}
{% endblock %}
"""


@dataclass(frozen=True)
class Halves(RowKernel, KernelType):
    """out = the first half of a row of x - its second half."""

    dim: int = 64
    kernel_name = "halves"

    def params(self) -> tuple[Param, ...]:
        return self.row("x", elements=2 * self.dim), self.row("out", access="out")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        with rows.each("subtract", more="more"):
            first, second = rows.load("x"), rows.load("x", first=self.dim)
            assert rows.load("x") is first
            for value, other in zip(first, second, strict=True):
                b.op("sub.f32", value, value, other)
            rows.store("out", first)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        return {"out": a["x"][:, : self.dim] - a["x"][:, self.dim :]}


HALVES = """{% extends "entry.ptx.j2" %}
{% from "flow.ptx.j2" import loop %}
{% block body %}
{{ locate }}
{% call loop("halves", more) %}
{{ subtract }}
{% endcall %}
{% endblock %}
"""


@dataclass(frozen=True)
class Largest(RowKernel, KernelType):
    """out = the largest of a row of x."""

    dim: int = 64
    kernel_name = "largest"

    def params(self) -> tuple[Param, ...]:
        return self.row("x"), buffer("out", f32, "rows", access="out")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        with b.fragment("begin"):
            most = b.op("mov.f32", "most", float("-inf"))
        with rows.each("compare", more="more"):
            values = rows.load("x")
            rows.only(values, float("-inf"))
            for value in values:
                b.op("max.f32", most, most, value)
        rows.reduce("of_the_row", "max.f32", most)
        with b.fragment("store"):
            first = b.op("setp.eq.u32", "first", rows.thread, 0)
            b.op("st.global.f32", rows.base("out")[0], most, pred=first)


LARGEST = """{% extends "entry.ptx.j2" %}
{% from "flow.ptx.j2" import loop, reduce %}
{% block body %}
{{ locate }}
{{ begin }}
{% call loop("elements", more) %}
{{ compare }}
{% endcall %}
{{ reduce(of_the_row) }}
{{ store }}
{% endblock %}
"""
CASES = [(PlainNorm, PLAIN_NORM), (HalfGemv, HALF_GEMV)]


def outputs(spec: KernelType, template: str, arguments: dict[str, np.ndarray], mode: str) -> dict[str, np.ndarray]:
    with demo_template(template, spec.kernel_name):
        ptx = generate(spec, "sm_80")
    device = ExecutorDevice(mode)
    there = {name: device.array(value) for name, value in arguments.items()}
    launch = ptx.launch.at({"rows": 3})
    device.module(ptx.text)[ptx.entry].launch(launch.grid, launch.block, [there[p.name] for p in ptx.params])
    return {param.name: there[param.name].numpy() for param in ptx.params if param.access == "out"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", [1, 77, 4096, 9000])
def test_the_norm_is_right(dim: int, mode: str) -> None:
    rng, spec = np.random.default_rng(dim), PlainNorm(dim)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, dim), (dim,)))
    arguments = {"x": x, "weight": weight, "out": np.full_like(x, np.nan)}
    got = outputs(spec, PLAIN_NORM, arguments, mode)["out"]
    np.testing.assert_allclose(got, spec.reference(**arguments)["out"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [64, 9000])
def test_two_places_of_a_row_have_registers_of_their_own(dim: int) -> None:
    x = np.random.default_rng(dim).standard_normal((3, 2 * dim)).astype(np.float32)
    arguments = {"x": x, "out": np.full((3, dim), np.nan, np.float32)}
    got = outputs(Halves(dim), HALVES, arguments, MODES[0])["out"]
    np.testing.assert_array_equal(got, Halves(dim).reference(**arguments)["out"])


@pytest.mark.parametrize("dim", [1, 64, 77, 9000])
def test_what_lies_beyond_a_row_is_no_part_of_its_maximum(dim: int) -> None:
    x = -1 - np.random.default_rng(dim).random((3, dim), np.float32)
    got = outputs(Largest(dim), LARGEST, {"x": x, "out": np.full(3, np.nan, np.float32)}, MODES[0])["out"]
    np.testing.assert_array_equal(got, x.max(-1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (7, 1000), (64, 512), (9, 4096)])
def test_the_product_is_right(n: int, k: int, mode: str) -> None:
    rng, spec = np.random.default_rng(n), HalfGemv(n, k)
    w, x = (rng.standard_normal(shape).astype(np.float16) for shape in ((n, k), (k,)))
    arguments = {"w": w, "x": x, "y": np.full(n, np.nan, np.float32)}
    got = outputs(spec, HALF_GEMV, arguments, mode)["y"]
    np.testing.assert_allclose(got, spec.reference(**arguments)["y"], rtol=1e-5, atol=1e-4)


def test_the_lint_lets_matrices_of_any_size_pass() -> None:
    with demo_template(HALF_GEMV, "half_gemv"):
        assert "mad.wide.u32" in generate(HalfGemv(1 << 20, 1 << 16), "sm_80").text


@pytest.mark.parametrize(("cls", "template"), CASES)
def test_they_are_short(cls: type[KernelType], template: str) -> None:
    imports = 16  # as a file of its own has them
    code = [line for line in inspect.getsource(cls).splitlines() if line.strip() and '"""' not in line]
    assert len(code) + imports <= 60
    assert len(template.splitlines()) <= 20
