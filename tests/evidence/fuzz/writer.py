"""Random straight-line LLVM IR without undefined behaviour. Branches and loops are in `control`.

What is left out, because LLVM or PTX does not say what it gives: poison (shift amounts are masked, divisors guarded,
conversions saturate), NaN payloads and signs (replaced before they can be seen), fast-math and contraction.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

INTS = ("i8", "i16", "i32", "i64")
FLOATS = ("half", "float", "double")
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64}
SLOTS, LOCALS = 8, 8
ARITHMETIC = ("add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "udiv", "urem", "sdiv", "srem")
RELATIONS = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
FLOAT_RELATIONS = (*(f"{o}{r}" for o in "ou" for r in ("eq", "ne", "lt", "le", "gt", "ge")), "uno", "ord")
FLOAT_CONSTANTS = ("0.0", "-0.0", "1.0", "-2.5", "0.5", "1.0e-3", "255.75", "0x7FF0000000000000")


@dataclass
class Scope:
    """Values that may be used here, by type; a copy goes into each branch."""

    values: dict[str, list[str]] = field(default_factory=dict)

    def copy(self) -> Scope:
        """The same values in lists of their own."""
        return Scope({t: list(v) for t, v in self.values.items()})


class Statements:
    """One function's body. `lines` is its text; `declared` collects the intrinsics it needs."""

    def __init__(self, rng: random.Random, declared: set[str], helpers: list[tuple[str, str, list[str]]]) -> None:
        self.rng, self.declared, self.helpers = rng, declared, helpers
        self.lines: list[str] = []
        self.label = "entry"
        self.scope = Scope()
        self.numbered = 0
        self.depth = 0
        self.memory = False

    # text ---------------------------------------------------------------------------------------------------------
    def name(self) -> str:
        """A number that no value or block of this text has yet."""
        self.numbered += 1
        return str(self.numbered)

    def emit(self, type_: str, text: str, keep: bool = True) -> str:
        """A line that defines a value; kept ones can be used later."""
        value = f"%v{self.name()}"
        self.lines.append(f"  {value} = {text}")
        if keep:
            self.scope.values.setdefault(type_, []).append(value)
        return value

    def start(self, label: str) -> None:
        """A new block."""
        self.lines.append(f"{label}:")
        self.label = label

    def call(self, result: str, name: str, args: list[tuple[str, str]], keep: bool = True) -> str:
        """A call of an intrinsic, declared once."""
        self.declared.add(f"declare {result} @{name}({', '.join(t for t, _ in args)})")
        return self.emit(result, f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})", keep)

    # values -------------------------------------------------------------------------------------------------------
    def constant(self, type_: str) -> str:
        """A literal, edges often."""
        if type_ == "i1":
            return self.rng.choice(("true", "false"))
        if type_ in FLOATS:
            return self.rng.choice(FLOAT_CONSTANTS[:5] if type_ != "double" else FLOAT_CONSTANTS) \
                if self.rng.random() < 0.8 else f"{self.rng.randrange(-64, 64) / 8}"  # fmt: skip
        width = BITS[type_]
        edge = self.rng.choice((0, 1, 2, -1, (1 << width - 1) - 1, -(1 << width - 1), 7, 100))
        return str(edge if self.rng.random() < 0.6 else self.rng.randrange(-(1 << width - 1), 1 << width - 1))

    def use(self, type_: str) -> str:
        """A value of a type: mostly a recent one, sometimes a literal."""
        known = self.scope.values.get(type_, [])
        if not known or self.rng.random() < 0.1:
            return self.constant(type_)
        return self.rng.choice(known[-6:] if self.rng.random() < 0.6 else known)

    def known(self, type_: str) -> str:
        """Like `use`, but never a literal if there is a value (so that nothing folds away)."""
        return self.rng.choice(self.scope.values[type_]) if self.scope.values.get(type_) else self.constant(type_)

    def definite(self, type_: str, value: str) -> str:
        """A float without NaN: what is seen of a NaN is one constant."""
        nan = self.emit("i1", f"fcmp uno {type_} {value}, {value}", keep=False)
        return self.emit(type_, f"select i1 {nan}, {type_} 1.0, {type_} {value}", keep=False)

    # straight-line statements -------------------------------------------------------------------------------------
    def integer(self) -> None:
        """Arithmetic, logic and guarded shifts and divisions."""
        t = self.rng.choice(INTS)
        op = self.rng.choice(ARITHMETIC)
        a, b = self.known(t), self.use(t)
        if op in ("shl", "lshr", "ashr"):
            b = self.emit(t, f"and {t} {b}, {BITS[t] - 1}", keep=False)
        elif op in ("udiv", "urem", "sdiv", "srem"):
            if op[0] == "s":
                b = self.emit(t, f"and {t} {b}, {(1 << BITS[t] - 1) - 1}", keep=False)
            b = self.emit(t, f"or {t} {b}, 1", keep=False)
        self.emit(t, f"{op} {t} {a}, {b}")

    def bits(self) -> None:
        """Integer intrinsics."""
        t = self.rng.choice(INTS)
        a, b, c = self.known(t), self.use(t), self.use(t)
        kind = self.rng.choice(("ctpop", "ctlz", "cttz", "bitreverse", "bswap", "fshl", "fshr", "smin", "smax", "umin",
                                "umax", "abs", "uadd.sat", "sadd.sat", "usub.sat", "ssub.sat", "overflow"))  # fmt: skip
        if kind in ("ctlz", "cttz", "abs"):
            self.call(t, f"llvm.{kind}.{t}", [(t, a), ("i1", "false")])
        elif kind in ("ctpop", "bitreverse") or (kind == "bswap" and t != "i8"):
            self.call(t, f"llvm.{kind}.{t}", [(t, a)])
        elif kind in ("fshl", "fshr"):
            self.call(t, f"llvm.{kind}.{t}", [(t, a), (t, b), (t, c)])
        elif kind == "overflow":
            op = self.rng.choice(("sadd", "uadd", "ssub", "usub", "smul", "umul"))
            pair = self.call(f"{{{t}, i1}}", f"llvm.{op}.with.overflow.{t}", [(t, a), (t, b)], keep=False)
            self.emit(t, f"extractvalue {{{t}, i1}} {pair}, 0")
            self.emit("i1", f"extractvalue {{{t}, i1}} {pair}, 1")
        elif kind != "bswap":
            self.call(t, f"llvm.{kind}.{t}", [(t, a), (t, b)])

    def floating(self) -> None:
        """Float arithmetic that both backends round correctly."""
        t = self.rng.choice(FLOATS)
        a, b = self.known(t), self.use(t)
        op = self.rng.choice(("fadd", "fsub", "fmul", "fdiv", "fneg", "fadd", "fmul"))
        self.emit(t, f"fneg {t} {a}" if op == "fneg" else f"{op} {t} {a}, {b}")

    def mathematics(self) -> None:
        """Float intrinsics with one right answer."""
        t = self.rng.choice(("float", "double"))
        suffix = {"float": "f32", "double": "f64"}[t]
        a, b, c = self.known(t), self.use(t), self.use(t)
        kind = self.rng.choice(("fabs", "sqrt", "fma", "minimum", "maximum", "floor", "ceil", "trunc", "rint",
                                "roundeven", "copysign"))  # fmt: skip
        if kind == "fma":
            self.call(t, f"llvm.fma.{suffix}", [(t, a), (t, b), (t, c)])
        elif kind in ("minimum", "maximum"):
            self.call(t, f"llvm.{kind}.{suffix}", [(t, a), (t, b)])
        elif kind == "copysign":
            self.call(t, f"llvm.copysign.{suffix}", [(t, a), (t, self.definite(t, b))])
        else:
            self.call(t, f"llvm.{kind}.{suffix}", [(t, a)])

    def compare(self) -> None:
        """icmp, fcmp, and logic on bits."""
        if self.rng.random() < 0.3:
            op = self.rng.choice(("and", "or", "xor"))
            self.emit("i1", f"{op} i1 {self.use('i1')}, {self.use('i1')}")
            return
        t = self.rng.choice(INTS + FLOATS)
        if t in FLOATS:
            word = self.rng.choice(FLOAT_RELATIONS)
            self.emit("i1", f"fcmp {word} {t} {self.known(t)}, {self.use(t)}")
        else:
            word = self.rng.choice(RELATIONS)
            self.emit("i1", f"icmp {word} {t} {self.known(t)}, {self.use(t)}")

    def select(self) -> None:
        """select of any type."""
        t = self.rng.choice(INTS + FLOATS)
        self.emit(t, f"select i1 {self.known('i1')}, {t} {self.use(t)}, {t} {self.use(t)}")

    def convert(self) -> None:
        """Casts between any two types, by a way that is defined for every value."""
        of, to = self.rng.choice(INTS + FLOATS + ("i1",)), self.rng.choice(INTS + FLOATS)
        value = self.known(of)
        if of in FLOATS and to in FLOATS:
            if BITS[to] > BITS[of]:
                self.emit(to, f"fpext {of} {value} to {to}")
            elif BITS[to] < BITS[of] and (of, to) != ("double", "half"):
                self.emit(to, f"fptrunc {of} {value} to {to}")
        elif of in FLOATS:
            if BITS[of] == BITS[to] and self.rng.random() < 0.5:
                self.emit(to, f"bitcast {of} {self.definite(of, value)} to {to}")
            elif to != "i8":
                sign, suffix = self.rng.choice("su"), {"half": "f16", "float": "f32", "double": "f64"}[of]
                if of == "half":  # of a NaN LLVM 22 makes the least number, not 0, on hosts with half arithmetic
                    value = self.definite(of, value)
                self.call(to, f"llvm.fpto{sign}i.sat.{to}.{suffix}", [(of, value)])
        elif to in FLOATS:
            if BITS[of] == BITS[to] and self.rng.random() < 0.3:
                self.emit(to, f"bitcast {of} {value} to {to}")
            elif to != "half" or BITS[of] < 16:  # wider ones go by way of float here, and round twice
                self.emit(to, f"{self.rng.choice('su')}itofp {of} {value} to {to}")
        elif BITS[to] > BITS[of]:
            self.emit(to, f"{self.rng.choice(('zext', 'sext'))} {of} {value} to {to}")
        elif BITS[to] < BITS[of]:
            self.emit(to, f"trunc {of} {value} to {to}")

    # memory -------------------------------------------------------------------------------------------------------
    def load(self) -> None:
        """From the inputs anywhere, or from the thread's own results."""
        t = self.rng.choice(INTS + FLOATS)
        if self.rng.random() < 0.7:
            index = self.emit("i32", f"and i32 {self.known('i32')}, {2048 // (BITS[t] // 8) - 1}", keep=False)
            at = self.emit("ptr", f"getelementptr {t}, PTR %in, i32 {index}", keep=False)
        else:
            at = self._own_slot()
        value = self.emit(t, f"load {t}, PTR {at}, align {BITS[t] // 8}", keep=t not in FLOATS)
        if t in FLOATS:
            self.scope.values.setdefault(t, []).append(value)

    def vector_load(self) -> None:
        """Several neighbours at once."""
        t, n = self.rng.choice((("i32", 4), ("i32", 2), ("i64", 2), ("float", 4), ("i16", 4), ("i8", 4), ("half", 2)))
        size = BITS[t] // 8 * n
        index = self.emit("i32", f"and i32 {self.known('i32')}, {2048 // size - 1}", keep=False)
        at = self.emit("ptr", f"getelementptr <{n} x {t}>, PTR %in, i32 {index}", keep=False)
        whole = self.emit("v", f"load <{n} x {t}>, PTR {at}, align {size}", keep=False)
        for k in range(n):
            self.emit(t, f"extractelement <{n} x {t}> {whole}, i32 {k}")

    def _own_slot(self) -> str:
        index = self.emit("i32", f"and i32 {self.known('i32')}, {SLOTS - 1}", keep=False)
        index = self.emit("i32", f"add i32 {index}, %own", keep=False)
        return self.emit("ptr", f"getelementptr i64, PTR %out, i32 {index}", keep=False)

    def store(self) -> None:
        """To one of the thread's own slots."""
        t = self.rng.choice(INTS + FLOATS)
        value = self.known(t)
        if t in FLOATS:
            value = self.definite(t, value)
        self.lines.append(f"  store {t} {value}, PTR {self._own_slot()}, align {BITS[t] // 8}")

    def local(self) -> None:
        """A store to and a load from a local array, at computed places."""
        for store in (True, False):
            index = self.emit("i32", f"and i32 {self.known('i32')}, {LOCALS - 1}", keep=False)
            at = self.emit("ptr", f"getelementptr i32, ptr %local, i32 {index}", keep=False)
            if store:
                self.lines.append(f"  store i32 {self.known('i32')}, ptr {at}")
            else:
                self.emit("i32", f"load i32, ptr {at}")

    def helper(self) -> None:
        """A call of one of the program's functions."""
        if not self.helpers:
            return
        name, result, params = self.rng.choice(self.helpers)
        args = ", ".join(f"{t} {self.use(t)}" for t in params)
        self.emit(result, f"call {result} @{name}({args})")

    def observe(self, count: int) -> None:
        """Mixes some of the values so far into the thread's last slot, so that a wrong one is seen."""
        every = [(t, v) for t in (*INTS, *FLOATS, "i1") for v in self.scope.values.get(t, ())]
        slot = self.emit("i32", f"add i32 %own, {SLOTS - 1}", keep=False)
        at = self.emit("ptr", f"getelementptr i64, PTR %out, i32 {slot}", keep=False)
        total = self.emit("i64", f"load i64, PTR {at}, align 8", keep=False)
        for t, value in self.rng.sample(every, min(count, len(every))):
            bits = value
            if t in FLOATS:
                bits = self.emit("i", f"bitcast {t} {self.definite(t, value)} to i{BITS[t]}", keep=False)
            if BITS[t] < 64:
                bits = self.emit("i64", f"zext i{BITS[t]} {bits} to i64", keep=False)
            total = self.emit("i64", f"mul i64 {total}, 6364136223846793005", keep=False)
            total = self.emit("i64", f"xor i64 {total}, {bits}", keep=False)
        self.lines.append(f"  store i64 {total}, PTR {at}, align 8")
