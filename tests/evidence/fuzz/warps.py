"""Statements about other threads: shuffles, votes and reductions of a warp, and the thread's own part of shared memory.

What a thread gets from another is a function of that thread's number (a `lane function` of the program), so that this
machine, which runs one thread after the other, can compute it. `spelled` turns the statements into either's IR.
"""

from __future__ import annotations

import random
import re

from tests.evidence.fuzz.writer import BITS, FLOATS, INTS, Statements

THREADS = 48  # a whole warp and a half
SHARED_BYTES = 16  # of a thread
_HALF = 0x1000  # segments of 16 lanes, in the third operand of a shuffle
_SHUFFLES = {
    "bfly": (0x1F, "xor i32 %tid, {n}"), "idx": (0x1F, "add i32 {segment}, {n}"),
    "up": (0, "sub i32 %tid, {n}"), "down": (0x1F, "add i32 %tid, {n}"),
}  # fmt: skip
_FOLDS = {"add": "add", "umax": "umax", "umin": "umin", "max": "smax", "min": "smin", "and": "and", "or": "or",
          "xor": "xor"}  # fmt: skip
_STATEMENT = re.compile(
    r"^  (?P<value>%\w+) = EXCHANGE (?P<kind>\w+) (?P<what>\w+) (?P<function>\S+) (?P<n>\d+)$", re.M
)


class Exchanges(Statements):
    """Only where all threads of a warp come by: outside branches and loops."""

    def __init__(self, rng: random.Random, declared: set[str], helpers: list[tuple[str, str, list[str]]]) -> None:
        super().__init__(rng, declared, helpers)
        self.lanes: dict[str, str] = {}  # lane functions by result type

    def shuffle(self) -> None:
        """A value of another lane of the warp, or of its half; or whether there is such a lane."""
        kind, what = self.rng.choice(tuple(_SHUFFLES)), self.rng.choice(("i32", "f32", "i32p"))
        function = self.lanes["float" if what == "f32" else "i32"]
        number = self.rng.randrange(1, 16)
        self.emit({"f32": "float", "i32p": "i1"}.get(what, "i32"), f"EXCHANGE {kind} {what} {function} {number}")

    def vote(self) -> None:
        """Which lanes of the warp, whether any or all, have the bit `n` of a value set."""
        what = self.rng.choice(("ballot", "any", "all"))
        text = f"EXCHANGE vote {what} {self.lanes['i32']} {self.rng.randrange(32)}"
        self.emit("i32" if what == "ballot" else "i1", text)

    def reduction(self) -> None:
        """A value of all lanes of the warp in one."""
        self.emit("i32", f"EXCHANGE redux {self.rng.choice(tuple(_FOLDS))} {self.lanes['i32']} 0")

    def shared(self) -> None:
        """A store to, an atomic on or a load from the thread's part of shared memory, by either kind of address."""
        t = self.rng.choice(INTS + FLOATS)
        size = BITS[t] // 8
        index = self.emit("i32", f"and i32 {self.known('i32')}, {SHARED_BYTES // size - 1}", keep=False)
        scaled = self.emit("i32", f"mul i32 {index}, {size}", keep=False)
        offset = self.emit("i32", f"add i32 {scaled}, %mine", keep=False)
        at, pointer = self.emit("ptr", f"getelementptr i8, SHP @NAME.shared, i32 {offset}", keep=False), "SHP"
        if self.rng.random() < 0.5:
            at, pointer = self.emit("ptr", f"GENERIC({at})", keep=False), "ptr"
        kind = self.rng.random()
        if kind < 0.3 and t in ("i32", "i64"):
            operation = self.rng.choice(("add", "xchg", "and", "or", "xor", "min", "max", "umin", "umax"))
            self.emit(t, f"atomicrmw {operation} {pointer} {at}, {t} {self.use(t)} monotonic, align {size}")
        elif kind < 0.6:
            value = self.known(t)
            value = self.definite(t, value) if t in FLOATS else value
            self.lines.append(f"  store {t} {value}, {pointer} {at}, align {size}")
        else:
            self.emit(t, f"load {t}, {pointer} {at}, align {size}")

    def prepare(self) -> None:
        """The thread's part of shared memory is written before anything else."""
        self.lines.append(f"  %mine = mul i32 %tid, {SHARED_BYTES}")
        for k in range(0, SHARED_BYTES, 4):
            offset = self.emit("i32", f"add i32 %mine, {k}", keep=False)
            at = self.emit("ptr", f"getelementptr i8, SHP @NAME.shared, i32 {offset}", keep=False)
            self.lines.append(f"  store i32 {k * 1234567}, SHP {at}, align 4")


def spelled(text: str, device: bool, declared: set[str]) -> str:
    """The statements above as IR for one of the two; `declared` collects intrinsics."""
    pointer = "ptr addrspace(3)" if device else "ptr"
    generic = rf"addrspacecast {pointer} \1 to ptr" if device else r"getelementptr i8, ptr \1, i64 0"
    text = re.sub(r"GENERIC\((%\w+)\)", generic, text)
    text = re.sub(r"\bSHP\b", pointer, text)
    return _STATEMENT.sub(lambda m: (_on_device if device else _on_host)(m, declared), text)


def shared_variable(name: str, device: bool) -> str:
    """The definition of a program's shared memory."""
    size = f"[{THREADS * SHARED_BYTES} x i8]"
    if device:
        return f"@{name}.shared = internal addrspace(3) global {size} undef, align 16"
    return f"@{name}.shared = internal global {size} zeroinitializer, align 16"


def _call(declared: set[str], result: str, name: str, args: list[tuple[str, str]]) -> str:
    declared.add(f"declare {result} @{name}({', '.join(t for t, _ in args)})")
    return f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"


def _on_device(m: re.Match[str], declared: set[str]) -> str:
    value, kind, what, n = m["value"], m["kind"], m["what"], m["n"]
    t = "float" if what == "f32" else "i32"
    lines = [f"{value}.x = call {t} @{m['function']}(i32 %tid)"]
    lines += [f"{value}.w = icmp ult i32 %tid, 32", f"{value}.m = select i1 {value}.w, i32 -1, i32 65535"]
    mask = ("i32", f"{value}.m")
    if kind in _SHUFFLES:
        third = _HALF | _SHUFFLES[kind][0]
        result = "{i32, i1}" if what == "i32p" else t
        args = [mask, (t, f"{value}.x"), ("i32", n), ("i32", str(third))]
        call = _call(declared, result, f"llvm.nvvm.shfl.sync.{kind}.{what}", args)
        lines += [f"{value}.p = {call}", f"{value} = extractvalue {result} {value}.p, 1"] if what == "i32p" else [
            f"{value} = {call}"]  # fmt: skip
    elif kind == "vote":
        lines += [f"{value}.s = lshr i32 {value}.x, {n}", f"{value}.b = trunc i32 {value}.s to i1"]
        result = "i32" if what == "ballot" else "i1"
        call = _call(declared, result, f"llvm.nvvm.vote.{what}.sync", [mask, ("i1", f"{value}.b")])
        lines.append(f"{value} = {call}")
    else:
        args = [("i32", f"{value}.x"), mask]
        lines.append(f"{value} = " + _call(declared, "i32", f"llvm.nvvm.redux.sync.{what}", args))
    return "\n".join(f"  {line}" for line in lines)


def _on_host(m: re.Match[str], declared: set[str]) -> str:
    value, kind, what, n = m["value"], m["kind"], m["what"], m["n"]
    t = "float" if what == "f32" else "i32"
    lines = [f"{value}.g = and i32 %tid, -16"]
    if kind in _SHUFFLES:
        source = _SHUFFLES[kind][1].format(n=n, segment=f"{value}.g")
        lines += [f"{value}.o = {source}", f"{value}.q = and i32 {value}.o, -16",
                  f"{value}.i = icmp eq i32 {value}.q, {value}.g"]  # fmt: skip
        if what == "i32p":
            lines.append(f"{value} = and i1 {value}.i, true")
        else:
            lines += [f"{value}.l = select i1 {value}.i, i32 {value}.o, i32 %tid",
                      f"{value} = call {t} @{m['function']}(i32 {value}.l)"]  # fmt: skip
        return "\n".join(f"  {line}" for line in lines)
    lines = [f"{value}.f = and i32 %tid, -32"]
    lanes = _half_or_whole(value, lines)
    folded = ""
    for k in range(32):  # lanes that are not there repeat the first, or give nothing
        here = f"{value}.{k}"
        lines += [f"{here}.k = add i32 {value}.f, {k}", f"{here}.i = icmp ult i32 {k}, {lanes}"]
        lines += [f"{here}.l = select i1 {here}.i, i32 {here}.k, i32 {value}.f",
                  f"{here}.x = call i32 @{m['function']}(i32 {here}.l)"]  # fmt: skip
        if kind == "vote":
            lines += [f"{here}.s = lshr i32 {here}.x, {n}", f"{here}.b = and i32 {here}.s, 1"]
            lines.append(f"{here}.t = shl i32 {here}.b, {k}")
            lines.append(f"{here}.v = select i1 {here}.i, i32 {here}.t, i32 0")
            folded = _fold("or", here, folded, lines, declared)
            continue
        neutral = {"add": "0", "xor": "0"}.get(what, f"{here}.x")
        lines.append(f"{here}.v = select i1 {here}.i, i32 {here}.x, i32 {neutral}")
        folded = _fold(_FOLDS[what], here, folded, lines, declared)
    if what == "any":
        lines.append(f"{value} = icmp ne i32 {folded}, 0")
    elif what == "all":
        lines += [f"{value}.w = icmp ult i32 %tid, 32", f"{value}.m = select i1 {value}.w, i32 -1, i32 65535",
                  f"{value} = icmp eq i32 {folded}, {value}.m"]  # fmt: skip
    else:
        lines.append(f"{value} = add i32 {folded}, 0")
    return "\n".join(f"  {line}" for line in lines)


def _half_or_whole(value: str, lines: list[str]) -> str:
    lines += [f"{value}.c = icmp ult i32 %tid, 32", f"{value}.n = select i1 {value}.c, i32 32, i32 {THREADS - 32}"]
    return f"{value}.n"


def _fold(operation: str, here: str, so_far: str, lines: list[str], declared: set[str]) -> str:
    if not so_far:
        return f"{here}.v"
    if operation in ("add", "and", "or", "xor"):
        lines.append(f"{here}.r = {operation} i32 {so_far}, {here}.v")
    else:
        args = [("i32", so_far), ("i32", f"{here}.v")]
        lines.append(f"{here}.r = " + _call(declared, "i32", f"llvm.{operation}.i32", args))
    return f"{here}.r"
