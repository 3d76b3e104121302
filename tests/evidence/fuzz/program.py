"""Whole random programs: a body, its helper functions, and the module text for either backend."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tests.evidence.fuzz.control import Writer
from tests.evidence.fuzz.warps import THREADS, shared_variable, spelled
from tests.evidence.fuzz.writer import BITS, FLOATS, INTS, LOCALS, SLOTS

INPUT_BYTES = 2048 + 16
OUTPUT_BYTES = THREADS * SLOTS * 8
TID = "llvm.nvvm.read.ptx.sreg.tid.x"


@dataclass(frozen=True)
class Program:
    """One program. In `body` and `helpers`, `PTR` stands for the pointer type of buffers, `NAME` for its own name; what
    `warps.py` has written is spelled out for each backend."""

    seed: int
    body: str
    helpers: str
    declared: frozenset[str]


def make(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    declared: set[str] = set()
    signatures: list[tuple[str, str, list[str]]] = []
    helpers = []
    for n in range(rng.randrange(0, 3)):
        result, params = rng.choice(INTS + FLOATS), [rng.choice(INTS + FLOATS) for _ in range(rng.randrange(1, 5))]
        helpers.append(_helper(rng, declared, signatures, f"NAME.f{n}", result, params))
        signatures.append((f"NAME.f{n}", result, params))
    writer = Writer(rng, declared, signatures)
    for t, name in (("i32", "NAME.int"), ("float", "NAME.float")):  # of the thread's number, for `warps.py`
        helpers.append(_helper(rng, declared, [], name, t, ["i32"]))
        writer.lanes[t] = name
    writer.memory = True
    writer.scope.values["i32"] = ["%tid"]
    writer.lines.append(f"  %own = mul i32 %tid, {SLOTS}")
    writer.lines.append(f"  %local = alloca [{LOCALS} x i32]")
    for k in range(LOCALS):
        at = writer.emit("ptr", f"getelementptr i32, ptr %local, i32 {k}", keep=False)
        writer.lines.append(f"  store i32 {k * 77}, ptr {at}")
    writer.prepare()
    for t in INTS + FLOATS:
        writer.scope.values.setdefault(t, [])
        step = writer.emit("i32", f"mul i32 %tid, {rng.randrange(1, 3)}", keep=False)
        at = writer.emit("ptr", f"getelementptr {t}, PTR %in, i32 {step}", keep=False)
        writer.emit(t, f"load {t}, PTR {at}, align {BITS[t] // 8}")
    writer.compare()
    writer.block(rng.randrange(5, 20))
    _store_all(writer)
    writer.lines.append("  ret void")
    return Program(seed, "\n".join(writer.lines), "\n".join(helpers), frozenset(declared))


def _helper(rng, declared, earlier, name: str, result: str, params: list[str]) -> str:
    writer = Writer(rng, declared, list(earlier))
    for k, t in enumerate(params):
        writer.scope.values.setdefault(t, []).append(f"%a{k}")
    writer.depth = 1
    writer.block(rng.randrange(3, 12))
    value = writer.known(result)
    if params == ["i32"] and result == "i32":  # of every lane something else
        value = writer.emit("i32", f"xor i32 {value}, %a0", keep=False)
        value = writer.emit("i32", f"mul i32 {value}, -1640531535", keep=False)
    arguments = ", ".join(f"{t} %a{k}" for k, t in enumerate(params))
    attributes = rng.choice(("noinline", "noinline", ""))
    body = "\n".join(writer.lines)
    return f"define internal {result} @{name}({arguments}) {attributes} {{\nentry:\n{body}\n  ret {result} {value}\n}}"


def _store_all(writer: Writer) -> None:
    """A value of every type, each to a slot of its own, and many values mixed into the last slot."""
    writer.observe(24)
    for k, t in enumerate((*INTS, *FLOATS)):
        value = writer.known(t)
        value = writer.definite(t, value) if t in FLOATS else value
        slot = writer.emit("i32", f"add i32 %own, {k}", keep=False)
        at = writer.emit("ptr", f"getelementptr i64, PTR %out, i32 {slot}", keep=False)
        writer.lines.append(f"  store {t} {value}, PTR {at}, align {BITS[t] // 8}")


def _named(text: str, number: int, device: bool, declared: set[str]) -> str:
    pointer = "ptr addrspace(1)" if device else "ptr"
    return spelled(re.sub(r"\bPTR\b", pointer, text).replace("NAME", f"p{number}"), device, declared)


def device_module(programs: list[Program]) -> str:
    """LLVM IR for NVPTX: one kernel `k<n>` a program, a thread an index."""
    declared = set().union(*(p.declared for p in programs))
    pointer = "ptr addrspace(1)"
    parts = ['target triple = "nvptx64-nvidia-cuda"', f"declare i32 @{TID}()"]
    for n, p in enumerate(programs):
        head = f"define ptx_kernel void @k{n}({pointer} %in, {pointer} %out) {{\nentry:\n  %tid = call i32 @{TID}()\n"
        parts += [shared_variable(f"p{n}", True), _named(p.helpers, n, True, declared)]
        parts.append(head + _named(p.body, n, True, declared) + "\n}")
    return "\n".join([*parts, *sorted(declared)])


def host_module(programs: list[Program]) -> str:
    """LLVM IR for this machine: `k<n>(in, out)` runs all threads, one after the other."""
    declared = set().union(*(p.declared for p in programs))
    parts = []
    for n, p in enumerate(programs):
        body = _named(p.body, n, False, declared)
        body = f"define internal void @b{n}(ptr %in, ptr %out, i32 %tid) {{\nentry:\n{body}\n}}"
        loop = f"""define void @k{n}(ptr %in, ptr %out) {{
entry:
  br label %loop
loop:
  %t = phi i32 [ 0, %entry ], [ %next, %loop ]
  call void @b{n}(ptr %in, ptr %out, i32 %t)
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, {THREADS}
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""
        parts += [shared_variable(f"p{n}", False), _named(p.helpers, n, False, declared), body, loop]
    return "\n".join([*parts, *sorted(declared)])
