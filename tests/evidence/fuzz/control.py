"""Structured control flow around random statements: if / else, switch, loops with carried values; phi at every join."""

from __future__ import annotations

from tests.evidence.fuzz.warps import Exchanges
from tests.evidence.fuzz.writer import FLOATS, INTS, Scope

MAX_DEPTH = 3


class Writer(Exchanges):
    """One function's body, nested statements too."""

    def block(self, count: int) -> None:
        """Some statements, nested ones too."""
        plain = [self.integer, self.integer, self.bits, self.floating, self.floating, self.mathematics, self.compare,
                 self.select, self.convert, self.convert, self.helper]  # fmt: skip
        if self.memory:
            plain += [self.load, self.vector_load, self.store, self.local, self.shared, self.shared]
        nested = [self.branch, self.loop, self.switch]
        for _ in range(count):
            if self.lanes and not self.depth and self.rng.random() < 0.1:
                self.rng.choice((self.shuffle, self.shuffle, self.vote, self.reduction))()
            deep = self.depth < MAX_DEPTH and self.rng.random() < 0.15
            self.rng.choice(nested if deep else plain)()

    def _arms(self, labels: list[str], join: str, outer: Scope) -> None:
        """Fills each arm, joins them, and merges a few values by phi."""
        ends: list[tuple[str, Scope]] = []
        for label in labels:
            self.scope = outer.copy()
            self.start(label)
            self.depth += 1
            self.block(self.rng.randrange(1, 6))
            self.depth -= 1
            if self.memory:
                self.observe(3)
            ends.append((self.label, self.scope))
            self.lines.append(f"  br label %{join}")
        self.start(join)
        merged = outer.copy()
        for t in self.rng.sample(INTS + FLOATS + ("i1",), 3):
            sources = []
            for label, scope in ends:
                self.scope = scope
                sources.append(f"[ {self.known(t)}, %{label} ]")
            self.scope = merged
            self.emit(t, f"phi {t} {', '.join(sources)}")
        self.scope = merged

    def branch(self) -> None:
        """if / else."""
        n = self.name()
        self.lines.append(f"  br i1 {self.known('i1')}, label %then{n}, label %else{n}")
        self._arms([f"then{n}", f"else{n}"], f"join{n}", self.scope.copy())

    def switch(self) -> None:
        """A dense switch; several cases may share an arm."""
        n, arms = self.name(), self.rng.randrange(2, 6)
        by = self.emit("i32", f"and i32 {self.known('i32')}, 15", keep=False)
        count = self.rng.randrange(3, 15)
        cases = " ".join(f"i32 {k}, label %case{n}.{self.rng.randrange(arms)}" for k in range(count))
        self.lines.append(f"  switch i32 {by}, label %case{n}.0 [ {cases} ]")
        used = [f"case{n}.{k}" for k in range(arms) if k == 0 or f"%case{n}.{k} " in cases + " "]
        self._arms(used, f"join{n}", self.scope.copy())

    def loop(self) -> None:
        """A counted loop with carried values, and sometimes an early way out."""
        n = self.name()
        limit = self.emit("i32", f"and i32 {self.known('i32')}, {self.rng.choice((3, 7, 15))}", keep=False)
        carried = [(t, f"%c{n}.{k}", self.use(t)) for k, t in enumerate(self.rng.sample(INTS + FLOATS, 2))]
        before, outer = self.label, self.scope.copy()
        self.lines.append(f"  br label %loop{n}")
        self.start(f"loop{n}")
        phis = len(self.lines)
        self.scope = outer.copy()
        for t, name, _ in [("i32", f"%i{n}", "0"), *carried]:
            self.scope.values.setdefault(t, []).append(name)
        self.depth += 1
        self.block(self.rng.randrange(2, 8))
        self.depth -= 1
        if self.memory:
            self.observe(3)
        nexts = [self.known(t) for t, _, _ in carried]
        step = self.emit("i32", f"add i32 %i{n}, 1", keep=False)
        more = self.emit("i1", f"icmp ult i32 {step}, {limit}", keep=False)
        if self.rng.random() < 0.5:
            more = self.emit("i1", f"and i1 {more}, {self.known('i1')}", keep=False)
        self.lines.append(f"  br i1 {more}, label %loop{n}, label %done{n}")
        rows = [("i32", f"%i{n}", "0", step)]
        rows += [(t, name, first, last) for (t, name, first), last in zip(carried, nexts, strict=True)]
        self.lines[phis:phis] = [f"  {name} = phi {t} [ {first}, %{before} ], [ {last}, %{self.label} ]"
                                 for t, name, first, last in rows]  # fmt: skip
        inner = self.scope
        self.start(f"done{n}")
        self.scope = outer
        for t, values in inner.values.items():
            fresh = [v for v in values if v not in outer.values.get(t, [])]
            self.scope.values.setdefault(t, []).extend(fresh[-1:])
