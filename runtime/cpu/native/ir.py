"""Text of LLVM IR functions, written with structured control flow. Knows LLVM's syntax and nothing of PTX."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LANES = 32
CHECKING = "checking"  # the condition of an `if_` whose body is there in check mode only: see `of_mode`
_CHECK_BEGIN, _CHECK_ELSE, _CHECK_END = "; check mode {", "; } else {", "; }"


def vec(element: str, lanes: int = LANES) -> str:
    """`<32 x i32>`."""
    return f"<{lanes} x {element}>"


def splat(element: str, value: object) -> str:
    """A constant vector with one value in every lane."""
    return f"splat ({element} {value})"


def lanes_of(element: str, step: int, lanes: int = LANES, start: int = 0) -> str:
    """The constant `<start, start + step, start + 2·step, …>`."""
    return "<" + ", ".join(f"{element} {start + step * n}" for n in range(lanes)) + ">"


def indices(numbers: list[int]) -> str:
    """A shuffle mask, with its type."""
    return f"<{len(numbers)} x i32> <" + ", ".join(f"i32 {n}" for n in numbers) + ">"


def of_mode(text: str, check: bool) -> str:
    """A function's text with what is said of check mode decided: the bodies of `if_(CHECKING)`, or of their `else_`."""
    if _CHECK_BEGIN not in text:
        return text
    kept, sides = [], [True]  # whether each side that is open is wanted
    for line in text.split("\n"):
        if line == _CHECK_BEGIN:
            sides.append(check)
        elif line == _CHECK_ELSE:
            sides[-1] = not check
        elif line == _CHECK_END:
            sides.pop()
        elif all(sides):
            kept.append(line)
    return "\n".join(kept)


class Code:
    """One function in the making: `code("add i32 %a, 1")` appends an instruction and returns the name of its value."""

    def __init__(self, head: str) -> None:
        self.head = head
        self.lines: list[str] = []
        self._allocas: list[str] = []
        self._names = 0
        self._patch: tuple[int, int, str] | None = None  # (line count after an if, its closing branch, its number)

    def __call__(self, text: str) -> str:
        self._names += 1
        name = f"%v{self._names}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction without a value."""
        self.lines.append("  " + text)

    def fresh(self, stem: str) -> str:
        """A label or name that is not used yet, without its `%`."""
        self._names += 1
        return f"{stem}{self._names}"

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(name + ":")

    def var(self, kind: str, init: object | None = None, align: int = 0) -> str:
        """A pointer to a stack slot made at function entry, stored to here if `init` is given."""
        self._names += 1
        name = f"%s{self._names}"
        self._allocas.append(f"  {name} = alloca {kind}" + (f", align {align}" if align else ""))
        if init is not None:
            self.do(f"store {kind} {init}, ptr {name}")
        return name

    def at(self, pointer: str, offset: object) -> str:
        """`pointer` plus a number of bytes: an int, or the name of an i64."""
        return pointer if offset == 0 else self(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def load(self, kind: str, pointer: str, offset: object = 0, align: int = 0) -> str:
        """Load from `pointer + offset`."""
        return self(f"load {kind}, ptr {self.at(pointer, offset)}" + (f", align {align}" if align else ""))

    def store(self, kind: str, value: object, pointer: str, offset: object = 0, align: int = 0) -> None:
        """Store to `pointer + offset`."""
        self.do(f"store {kind} {value}, ptr {self.at(pointer, offset)}" + (f", align {align}" if align else ""))

    def move(self, to: str, source: str, count: object) -> None:
        """Copy `count` bytes between places that do not overlap."""
        self.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {count}, i1 false)")

    def spread(self, element: str, scalar: str) -> str:
        """A scalar in every lane."""
        one = self(f"insertelement {vec(element)} poison, {element} {scalar}, i64 0")
        return self(f"shufflevector {vec(element)} {one}, {vec(element)} poison, {vec('i32')} zeroinitializer")

    @contextmanager
    def if_(self, condition: str, likely: bool | None = None) -> Iterator[None]:
        """Run the body where the i1 holds; `else_` may follow. With `CHECKING` nothing is decided at run time."""
        if condition == CHECKING:
            self.lines.append(_CHECK_BEGIN)
            yield
            self.lines.append(_CHECK_END)
            self._patch = (len(self.lines), len(self.lines) - 1, "")
            return
        n = self.fresh("")
        weights = "" if likely is None else f", !prof !{int(likely)}"
        self.do(f"br i1 {condition}, label %then{n}, label %else{n}{weights}")
        self.label(f"then{n}")
        yield
        self.do(f"br label %else{n}")
        closing = len(self.lines) - 1
        self.label(f"else{n}")
        self._patch = (len(self.lines), closing, n)

    @contextmanager
    def else_(self) -> Iterator[None]:
        """The other side of the `if_` just closed."""
        assert self._patch is not None
        assert self._patch[0] == len(self.lines), "else_ must follow if_"
        _, closing, n = self._patch
        if not n:
            self.lines[closing] = _CHECK_ELSE
            yield
            self.lines.append(_CHECK_END)
            return
        self.lines[closing] = f"  br label %endif{n}"
        yield
        self.do(f"br label %endif{n}")
        self.label(f"endif{n}")

    @contextmanager
    def loop(self) -> Iterator[str]:
        """Repeat the body until `leave(label)` is called with the label that is yielded."""
        n = self.fresh("")
        self.do(f"br label %loop{n}")
        self.label(f"loop{n}")
        yield f"after{n}"
        self.do(f"br label %loop{n}")
        self.label(f"after{n}")

    def leave(self, label: str, condition: str | None = None) -> None:
        """Jump to a label: always, or where the i1 holds."""
        if condition is None:
            self.do(f"br label %{label}")
            self.label(self.fresh("unreached"))
            return
        stay = self.fresh("stay")
        self.do(f"br i1 {condition}, label %{label}, label %{stay}")
        self.label(stay)

    def ret(self, text: str = "void", when: str | None = None) -> None:
        """Return: at the end of the function, or (`when`) where the i1 holds."""
        if when is None:
            self.do(f"ret {text}")
            return
        n = self.fresh("")
        self.do(f"br i1 {when}, label %out{n}, label %on{n}")
        self.label(f"out{n}")
        self.do(f"ret {text}")
        self.label(f"on{n}")

    @contextmanager
    def each_bit(self, mask: str) -> Iterator[str]:
        """Run the body once for each set bit of an i32, lowest first; yields the bit number as an i32."""
        left = self.var("i32", mask)
        with self.loop() as out:
            now = self.load("i32", left)
            self.leave(out, self(f"icmp eq i32 {now}, 0"))
            lane = self(f"call i32 @llvm.cttz.i32(i32 {now}, i1 true)")
            below = self(f"sub i32 {now}, 1")
            self.store("i32", self(f"and i32 {now}, {below}"), left)
            yield lane

    @contextmanager
    def count(self, kind: str, end: object, start: object = 0) -> Iterator[str]:
        """Run the body for start, start+1, … below `end` (unsigned)."""
        at = self.var(kind, start)
        with self.loop() as out:
            now = self.load(kind, at)
            self.leave(out, self(f"icmp uge {kind} {now}, {end}"))
            yield now
            self.store(kind, self(f"add {kind} {now}, 1"), at)

    def text(self) -> str:
        """The function as LLVM IR."""
        return "\n".join([self.head + " {", "entry:", *self._allocas, *self.lines, "}"]) + "\n"
