"""A form: one instruction with its operand kinds. Forms on the same operands share an entry, entries a module."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.evidence.instructions.inputs import WIDTH, make, register_type

HEAD = ".version 8.6\n.target {target}\n.address_size 64\n"
BUNDLE = 24
_ANY_INTEGER = re.compile(r"\b[us](?=(?:8|16|32|64)$)|(?<=_)[us](?=(?:8|16|32|64)$)")


@dataclass(frozen=True)
class Form:
    """One instruction form.

    `text` is PTX with `d0`, `d1` … for results, `s0`, `s1` … for sources, `t0` … for scratch registers named in
    `scratch`; `%mem` and `%smem` are 16 bytes of the thread's own in global and shared memory, those of a warp's lanes
    side by side. `results` are register types; `sources` are input kinds. `exact` is False for
    approximations and rounded sums, which `bounds.py` has the bound of. `threads` is the grid of the form; `space` is
    a block's shared memory of `shared` bytes.
    """

    name: str
    text: str
    sources: tuple[str, ...]
    results: tuple[str, ...]
    scratch: tuple[str, ...] = ()
    exact: bool = True
    threads: int = 256
    target: str = "sm_90"
    shared: int = 8192

    @property
    def digest(self) -> int:
        """Changes when what was recorded is no longer what would run."""
        words = (self.text, self.sources, self.results, self.scratch, self.threads, self.target, self.shared, HEAD)
        return zlib.crc32(repr(words).encode()) ^ zlib.crc32(self.inputs().tobytes())

    @property
    def kinds(self) -> tuple[str, ...]:
        """The sources' input kinds; integers of one width are one kind."""
        return tuple(_ANY_INTEGER.sub("b", kind) for kind in self.sources)

    def inputs(self) -> np.ndarray:
        """uint64 `[sources, threads]` of raw bits."""
        rows = [make(kind, zlib.crc32(f"{kind} {n}".encode()), self.threads) for n, kind in enumerate(self.kinds)]
        return np.stack(rows) if rows else np.zeros((0, self.threads), np.uint64)


@dataclass(frozen=True)
class Entry:
    """Forms over the same inputs. Parameters: inputs, results (8 bytes a value, `[rows, threads]`), scratch memory."""

    name: str
    forms: tuple[Form, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Kinds of the inputs: the forms take all of them, or the first few."""
        return max((f.kinds for f in self.forms), key=len)

    def inputs(self) -> np.ndarray:
        """uint64 `[sources, threads]`."""
        return max((f.inputs() for f in self.forms), key=len)

    @property
    def threads(self) -> int:
        """Of the whole grid, in blocks of `block`."""
        return self.forms[0].threads

    @property
    def block(self) -> int:
        """Threads of a block."""
        return min(self.threads, 256)

    @property
    def rows(self) -> int:
        """Rows of results."""
        return sum(len(f.results) for f in self.forms)

    def ptx(self) -> str:
        """The entry's text."""
        loads = []
        for n, kind in enumerate(self.sources):
            loads.append(f"    ld.global.{_move(register_type(kind))} %s{n}, [%in+{n * self.threads * 8}];")
        body, row = [], 0
        for form in self.forms:
            body.append(_scope(form, row, self.threads))
            row += len(form.results)
        sources = "\n".join(f"    .reg .{_declared(register_type(k))} %s{n};" for n, k in enumerate(self.sources))
        return _ENTRY.format(
            name=self.name, sources=sources, loads="\n".join(loads), body="\n".join(body), shared=self.forms[0].shared
        )

    def results(self, rows: np.ndarray) -> Iterator[tuple[Form, list[np.ndarray]]]:
        """Each form's results by its types, out of uint64 `[rows, threads]`."""
        row = 0
        for form in self.forms:
            yield form, [narrowed(r, t) for r, t in zip(rows[row:], form.results, strict=False)]
            row += len(form.results)


_ENTRY = """.visible .entry {name}(.param .u64 inputs, .param .u64 results, .param .u64 memory)
{{
    .shared .align 1024 .b8 space[{shared}];
    .reg .b64 %in, %out, %mem, %wide;
    .reg .b32 %me, %smem, %warp, %thread;
{sources}
    mov.u32 %me, %tid.x;
    mov.u32 %thread, %ctaid.x;
    mov.u32 %warp, %ntid.x;
    mad.lo.u32 %thread, %thread, %warp, %me;
    mul.wide.u32 %wide, %thread, 8;
    ld.param.u64 %in, [inputs];
    add.u64 %in, %in, %wide;
    ld.param.u64 %out, [results];
    add.u64 %out, %out, %wide;
    mul.wide.u32 %wide, %thread, 16;
    ld.param.u64 %mem, [memory];
    add.u64 %mem, %mem, %wide;
    mov.u32 %smem, space;
    shr.u32 %warp, %me, 5;
    mad.lo.u32 %warp, %warp, 1024, %smem;
    and.b32 %smem, %me, 31;
    mad.lo.u32 %smem, %smem, 16, %warp;
{loads}
{body}
    ret;
}}
"""


def _declared(type_: str) -> str:
    return type_ if type_ == "pred" else f"b{max(WIDTH[type_], 16)}"


def _move(type_: str) -> str:
    return f"b{WIDTH[type_]}"


def _scope(form: Form, row: int, threads: int) -> str:
    lines = [f"    {{ // {form.name}"]
    registers = [(f"%d{n}", t) for n, t in enumerate(form.results)]
    registers += [(f"%t{n}", t) for n, t in enumerate(form.scratch)]
    if "pred" in form.results:
        registers.append(("%flag", "b32"))
    lines += [f"        .reg .{_declared(t)} {name};" for name, t in registers]
    lines.append("        " + _named(form.text).replace("\n", "\n        "))
    for n, type_ in enumerate(form.results):
        at = f"[%out+{(row + n) * threads * 8}]"
        if type_ == "pred":
            lines += [f"        selp.u32 %flag, 1, 0, %d{n};", f"        st.global.u32 {at}, %flag;"]
        else:
            lines.append(f"        st.global.{_move(type_)} {at}, %d{n};")
    return "\n".join([*lines, "    }"])


def _named(text: str) -> str:
    """`d0` as `%d0`, and so on, where it stands alone."""
    return re.sub(r"(?<![\w%.$])([dst]\d+)\b", r"%\1", text)


def narrowed(row: np.ndarray, type_: str) -> np.ndarray:
    """Raw results in an unsigned type of their width."""
    width = 8 if type_ == "pred" else WIDTH[type_]
    return (row & np.uint64((1 << width) - 1)).astype(f"u{width // 8}")


def bundle(forms: Iterable[Form], size: int = BUNDLE) -> list[Entry]:
    """Entries of at most `size` forms: those whose sources are the same, or the first of another's."""
    groups: dict[tuple[tuple[object, ...], tuple[str, ...]], list[Form]] = {}
    for form in sorted(forms, key=lambda f: -len(f.sources)):
        kinds, frame = form.kinds, (form.threads, form.target, form.shared)
        fits = (k for k in groups if k[0] == frame and k[1][: len(kinds)] == kinds)
        groups.setdefault(next(fits, (frame, kinds)), []).append(form)
    parts = [g[n : n + size] for g in groups.values() for n in range(0, len(g), size)]
    return [Entry(f"forms_{n}", tuple(part)) for n, part in enumerate(parts)]


def module_text(entries: Iterable[Entry]) -> str:
    """One module of some entries, all for one target."""
    chosen = list(entries)
    (target,) = {f.target for e in chosen for f in e.forms}
    return HEAD.format(target=target) + "\n".join(e.ptx() for e in chosen)
