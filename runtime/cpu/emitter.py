"""Emits one entry as a warp function: registers, guards, blocks and jumps. The instructions themselves are families'.

A register is an LLVM value inside a block and 32 lanes of memory (the file) between blocks, written back under the
block's mask. `mask` and predicates travel as one i32.
"""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.calls import function_address
from ptxgen.runtime.cpu.flow import Block, Flow, Op, Source
from ptxgen.runtime.cpu.ir import Code, splat, vec
from ptxgen.runtime.cpu.layout import DONE, FAULTED, LAUNCH, PARKED, READY, THREAD, WARP, YIELDED, Shape
from ptxgen.runtime.cpu.symbols import Reg, Var, round_up
from ptxgen.runtime.cpu.types import SIGNED, element_bits, integer_vector, literal, vector_of

SCRATCH_BYTES = 4096  # of the block through which vectors of registers pass to support functions


class Emitter:
    """What an instruction emitter works with; see `registry.py` for the contract.

    `cta`, `thread` and `launch` point to native state, `scratch` to memory for vectors of registers, `mask` is the
    block's lanes.
    """

    c: Code
    cta: str
    thread: str
    launch: str
    scratch: str
    mask: str

    def __init__(self, module: nodes.Module, flow: Flow, name: str, check: bool, native_half: bool) -> None:
        self.module, self.flow, self.check, self.native_half = module, flow, check, native_half
        self.c = Code(f"define i32 @{name}(ptr %w)")
        self.suffix = ".check" if check else ""
        self.sites: list[tuple[int, str, str]] = []  # (line, text, remark) of everything that can fail
        self._offsets: dict[int, int] = {}  # of registers in the file (−1 − index: of their defined lanes)
        self.shape = Shape(len(flow.blocks) + 1, 0)
        self.warp = "%w"
        self.block: Block = flow.blocks[0]
        self.op: Op = next(op for each in flow.blocks for op in each.ops)
        self._values: dict[int, dict[str, str]] = {}
        self._casts: dict[tuple[str, str], str] = {}
        self._host_nans: set[str] = set()  # f32 values whose NaNs are the host's, not yet PTX's one
        self._dirty: dict[int, None] = {}
        self._old: dict[int, dict[str, str]] = {}
        self._guards: dict[tuple[int, str, bool], tuple[str, str]] = {}
        self._pointers: dict[int, str] = {}
        self.defined = _DefinedLanes(self) if check else None
        self.blocks = {block.key: block for block in flow.blocks}
        self.cta = self.thread = self.launch = self.scratch = self.mask = self._mask_vector = ""
        self.ended = False

    # the whole function -----------------------------------------------------------------------------------------
    def run(self) -> str:
        """The text of the warp function."""
        c = self.c
        self.cta = c.load("ptr", "%w", WARP["cta"])
        self.thread = c.load("ptr", "%w", WARP["thread"])
        self.launch = c.load("ptr", self.thread, THREAD["launch"])
        self.scratch = c.var(f"[{SCRATCH_BYTES} x i8]", align=64)
        c.do("br label %dispatch")
        for block in self.flow.blocks:
            self._emit_block(block)
        self._emit_dispatch()
        return c.text()

    def place(self, index: int, size: int) -> int:
        """Offset in a warp of a file slot, made when first asked for."""
        if index not in self._offsets:
            here = round_up(self.shape.registers, min(size, 64))
            self._offsets[index] = here
            self.shape = Shape(self.shape.blocks, here + size)
        return self.shape.file + self._offsets[index]

    def _emit_block(self, block: Block) -> None:
        c = self.c
        self.block = block
        caches = (self._values, self._casts, self._dirty, self._old, self._guards, self._pointers, self._host_nans)
        for cache in caches:
            cache.clear()
        if self.defined:
            self.defined.begin(block)
        c.label(f"enq{block.number}")
        self.enqueue(block, c.load("i32", "%w", WARP["mask"]))
        c.do("br label %dispatch")
        c.label(f"b{block.number}")
        self.mask = c.load("i32", "%w", WARP["mask"])
        self._mask_vector = ""
        self.ended = False
        for op in block.ops:
            self.op = op
            if self.defined:
                self.defined.sources = None
            assert op.family is not None
            try:
                op.family.function(self, op)
            except IsaError as error:
                raise self.error(str(error)) from None
            except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise self.unsupported("with these operands") from error
        if not self.ended:
            self.spill()
            if block.next is None:
                c.do("br label %dispatch")
            else:
                self.goto(block.next, self.mask)

    def error(self, what: str) -> IsaError:
        """An `IsaError` with file, line and text of the current instruction."""
        if what.startswith(self.module.file):
            return IsaError(what)
        text = self.module.source_line(self.op.line) or self.op.text
        return IsaError(f"{self.module.file}:{self.op.line}: {what}: {text}")

    def unsupported(self, what: str = "") -> IsaError:
        """The error for a form that this executor lacks (R-g2)."""
        return self.error(
            f"instruction {'.'.join(self.op.words)}{' ' + what if what else ''} is not supported by the CPU executor"
        )

    def site(self) -> int:
        """A number for the current instruction, by which a fault finds its line."""
        if not self.sites or self.sites[-1] != (self.op.line, self.op.text, ""):
            self.new_site()
        return len(self.sites) - 1

    def new_site(self, remark: str = "") -> int:
        """A number of its own: for an access (which keeps a last-hit allocation), or with a remark for the report."""
        self.sites.append((self.op.line, self.op.text, remark))
        return len(self.sites) - 1

    # masks ------------------------------------------------------------------------------------------------------
    def mask_vector(self) -> str:
        """The block's mask as `<32 x i1>`."""
        if not self._mask_vector:
            self._mask_vector = self.c(f"bitcast i32 {self.mask} to {vec('i1')}")
        return self._mask_vector

    def _guard(self) -> tuple[str, str]:
        """(i32, <32 x i1>) of the lanes whose guard holds."""
        op = self.op
        assert op.guard is not None
        value = self.predicate(op.guard)
        key = (op.guard.index, value, op.negated)
        if key not in self._guards:
            held = self.c(f"xor i32 {value}, -1") if op.negated else value
            self._guards[key] = (held, self.c(f"bitcast i32 {held} to {vec('i1')}"))
        return self._guards[key]

    def exec_mask(self) -> str:
        """The lanes that execute the instruction: the block's mask and the guard, as an i32."""
        if self.op.guard is None:
            return self.mask
        return self.c(f"and i32 {self.mask}, {self._guard()[0]}")

    def exec_vector(self) -> str:
        """`exec_mask` as `<32 x i1>`."""
        return self.mask_vector() if self.op.guard is None else self.lanes(self.exec_mask())

    def lanes(self, mask: str) -> str:
        """An i32 of lanes as `<32 x i1>`."""
        return self.c(f"bitcast i32 {mask} to {vec('i1')}")

    def bits(self, lanes: str) -> str:
        """A `<32 x i1>` as an i32."""
        return self.c(f"bitcast {vec('i1')} {lanes} to i32")

    # registers --------------------------------------------------------------------------------------------------
    def _slot(self, reg: Reg) -> str:
        pointer = self._pointers.get(reg.index)
        if pointer is None:
            place = self.place(reg.index, 4 if reg.bits == 1 else 4 * reg.bits)
            pointer = self._pointers[reg.index] = self.c.at("%w", place)
        return pointer

    def _from_file(self, reg: Reg, kind: str) -> str:
        """The value at the beginning of the block."""
        held = self._old.setdefault(reg.index, {})
        if kind not in held:
            if held:
                other, name = next(iter(held.items()))
                held[kind] = self.cast(name, other, kind)
            else:
                held[kind] = self.c.load(kind, self._slot(reg), align=min(64, 4 * reg.bits))
        return held[kind]

    def read(self, reg: Reg, kind: str) -> str:
        """A register as a vector of any type with as many bits."""
        held = self._values.get(reg.index)
        if held is None:
            if self.defined:
                self.defined.check(reg)
            return self._from_file(reg, kind)
        if self.defined:
            self.defined.check(reg)
        if kind not in held:
            other, name = next(iter(held.items()))
            held[kind] = self.cast(name, other, kind)
        return held[kind]

    def write(self, reg: Reg, value: str, kind: str) -> None:
        """Set a register in the lanes that execute."""
        if self.op.guard is not None:
            held = self._values.get(reg.index)
            if held is None:
                old = self._from_file(reg, kind)
            else:
                if kind not in held:
                    other, name = next(iter(held.items()))
                    held[kind] = self.cast(name, other, kind)
                old = held[kind]
            value = self._select(value, old, kind)
        self._values[reg.index] = {kind: value}
        self._dirty[reg.index] = None
        if self.defined:
            self.defined.write(reg)

    def _select(self, new: str, old: str, kind: str) -> str:
        if kind == "i32":  # a predicate
            held = self._guard()[0]
            taken = self.c(f"and i32 {new}, {held}")
            kept = self.c(f"and i32 {old}, {self.c(f'xor i32 {held}, -1')}")
            return self.c(f"or i32 {taken}, {kept}")
        return self._blend(self._guard()[1], new, old, kind)

    def _blend(self, lanes: str, new: str, old: str, kind: str) -> str:
        if kind.startswith("<64"):  # two elements a lane
            whole = vec("i32")
            a, b = self.cast(new, kind, whole), self.cast(old, kind, whole)
            return self.cast(self.c(f"select {vec('i1')} {lanes}, {whole} {a}, {whole} {b}"), whole, kind)
        chosen = self.c(f"select {vec('i1')} {lanes}, {kind} {new}, {kind} {old}")
        return self.result(chosen) if new in self._host_nans or old in self._host_nans else chosen

    def cast(self, value: str, from_: str, to: str) -> str:
        """The same bits as another vector type."""
        if from_ == to:
            return value
        key = (value, to)
        if key not in self._casts:
            self._casts[key] = self.c(f"bitcast {from_} {self._canonical(value)} to {to}")
        return self._casts[key]

    def result(self, value: str) -> str:
        """Note that an f32 value comes from host arithmetic: its NaNs become PTX's 0x7FFFFFFF when its bits are seen.

        Seen means read as another type, or kept beyond the block; a chain of arithmetic pays once, at its end.
        """
        self._host_nans.add(value)
        return value

    def is_result(self, value: str) -> bool:
        """Whether a value's NaNs are the host's."""
        return value in self._host_nans

    def _canonical(self, value: str) -> str:
        if value not in self._host_nans:
            return value
        key = (value, "canonical")
        if key not in self._casts:
            single = vec("float")
            nan = self.c(f"fcmp uno {single} {value}, {value}")
            one = f"bitcast ({vec('i32')} splat (i32 {0x7FFFFFFF}) to {single})"
            self._casts[key] = self.c(f"select {vec('i1')} {nan}, {single} {one}, {single} {value}")
        return self._casts[key]

    def spill(self) -> None:
        """Write back what later blocks read; the registers stay readable in this block."""
        c = self.c
        for index in self._dirty:
            if not self.block.live_out >> index & 1:
                continue
            reg = self.flow.registers[index]
            held = self._values[index]
            kind, value = next(iter(held.items()))
            if reg.bits == 1:
                old = self._from_file(reg, "i32")
                new = c(f"and i32 {value}, {self.mask}")
                kept = c(f"and i32 {old}, {c(f'xor i32 {self.mask}, -1')}")
                c.store("i32", c(f"or i32 {new}, {kept}"), self._slot(reg))
            else:
                whole = integer_vector(reg.bits) if kind.startswith("<64") else kind
                value = self._canonical(self.cast(value, kind, whole))
                new = c(
                    f"select {vec('i1')} {self.mask_vector()}, {whole} {value}, {whole} {self._from_file(reg, whole)}"
                )
                c.store(whole, new, self._slot(reg), align=min(64, 4 * reg.bits))
        self._dirty.clear()
        if self.defined:
            self.defined.spill()

    # operands ---------------------------------------------------------------------------------------------------
    def reg(self, operand: Source) -> Reg | None:
        """The register that an operand names; None for the sink and for special registers."""
        if isinstance(operand, Reg):
            return operand
        if isinstance(operand, nodes.Register):
            found = self.op.scope.find(operand.name)
            return found if isinstance(found, Reg) else None
        return None

    def src(self, operand: Source, kind: str) -> str:
        """A source operand as the vector of a PTX type: `f32` → `<32 x float>`; wider registers are truncated."""
        if kind == "pred":
            return self.lanes(self.pred(operand))
        vector = vector_of(kind)
        reg = self.reg(operand)
        if reg is not None:
            return self._fit(reg, kind, vector)
        if isinstance(operand, nodes.Immediate):
            return literal(operand, kind)
        if isinstance(operand, nodes.Register):
            from ptxgen.runtime.cpu.special import special_register

            return self.resize(*special_register(self, operand.name), kind)
        if isinstance(operand, nodes.Symbol):
            return self.resize(self.symbol(operand), vec("i64"), kind)
        raise self.unsupported(f"with operand {operand}")

    def _fit(self, reg: Reg, kind: str, vector: str) -> str:
        wanted = element_bits(vector)
        if reg.bits == wanted:
            return self.read(reg, vector)
        if reg.bits == 1:
            raise self.error(f"operand {reg.name}: a predicate cannot be a .{kind}")
        return self.resize(self.read(reg, integer_vector(reg.bits)), integer_vector(reg.bits), kind)

    def resize(self, value: str, vector: str, kind: str) -> str:
        """An integer vector as the type of `kind`: truncated, or extended by its sign."""
        wanted = vector_of(kind)
        have, want = element_bits(vector), element_bits(wanted)
        whole = integer_vector(want)
        if have > want:
            value = self.c(f"trunc {vector} {value} to {whole}")
        elif have < want:
            value = self.c(f"{'sext' if kind in SIGNED else 'zext'} {vector} {value} to {whole}")
        else:
            whole = vector
        return self.cast(value, whole, wanted)

    def predicate(self, reg: Reg) -> str:
        """A predicate register as an i32 of lanes."""
        return self.read(reg, "i32")

    def pred(self, operand: Source) -> str:
        """A predicate operand (`%p`, `!%p`, or a literal) as an i32 of lanes."""
        if isinstance(operand, nodes.Negated):
            return self.c(f"xor i32 {self.pred(operand.operand)}, -1")
        if isinstance(operand, nodes.Immediate):
            return "-1" if operand.value else "0"
        reg = self.reg(operand)
        if reg is None or reg.bits != 1:
            if isinstance(operand, nodes.Register) and operand.name.startswith("%is_explicit"):
                return "-1" if self.flow.entry.performance.get("explicitcluster") is not None else "0"
            raise self.error(f"operand {operand}: must be a predicate")
        return self.predicate(reg)

    def dst(self, operand: Source, value: str, kind: str) -> None:
        """Write a destination; a register wider than the type gets the extended value."""
        if kind == "pred":
            self.dst_pred(operand, self.bits(value))
            return
        reg = self.reg(operand)
        if reg is None:
            self._sink(operand)
            return
        vector = vector_of(kind)
        have = element_bits(vector)
        if have == reg.bits:
            self.write(reg, value, vector)
        elif have < reg.bits and reg.bits > 1:
            whole, wide = integer_vector(have), integer_vector(reg.bits)
            extended = self.c(
                f"{'sext' if kind in SIGNED else 'zext'} {whole} {self.cast(value, vector, whole)} to {wide}"
            )
            self.write(reg, extended, wide)
        else:
            raise self.error(f"operand {reg.name}: a .{reg.type} register cannot hold a .{kind}")

    def dst_pred(self, operand: Source, lanes: str) -> None:
        """Write a predicate destination from an i32 of lanes."""
        if isinstance(operand, nodes.Negated):
            self.dst_pred(operand.operand, self.c(f"xor i32 {lanes}, -1"))
            return
        reg = self.reg(operand)
        if reg is None:
            self._sink(operand)
        elif reg.bits != 1:
            raise self.error(f"operand {reg.name}: must be a predicate")
        else:
            self.write(reg, lanes, "i32")

    def _sink(self, operand: Source) -> None:
        if not (isinstance(operand, nodes.Register) and operand.name == "_"):
            raise self.error(f"operand {operand}: must be a register")

    def symbol(self, symbol: nodes.Symbol) -> str:
        """Address of a variable in its own space (for `.param` of the entry: in memory), as `<32 x i64>`."""
        found = self.op.scope.find(symbol.name)
        function = None if isinstance(found, Var) else function_address(self.module, symbol.name)
        if function is not None:
            return splat("i64", function)
        if not isinstance(found, Var) or found.words:
            raise self.error(f"operand {symbol}: has no address here")
        if found.space == "param":
            scalar = self.c(f"ptrtoint ptr {self.c.load('ptr', self.launch, LAUNCH['params'])} to i64")
            return self.c.spread("i64", self.c(f"add i64 {scalar}, {found.offset + symbol.offset}"))
        if found.symbol >= 0:
            table = self.c.load("ptr", self.launch, LAUNCH["symbols"])
            scalar = self.c.load("i64", table, 8 * found.symbol)
            if symbol.offset:
                scalar = self.c(f"add i64 {scalar}, {symbol.offset}")
            return self.c.spread("i64", scalar)
        return splat("i64", found.offset + symbol.offset)

    def first_lane(self, value: str, kind: str, mask: str | None = None) -> str:
        """The element of the lowest executing lane (0 where none executes), as a scalar of LLVM type `kind`."""
        slot = self.c.var(vec(kind), align=64)
        self.c.store(vec(kind), value, slot)
        lane = self.c(f"call i32 @llvm.cttz.i32(i32 {mask or self.exec_mask()}, i1 false)")
        return self.c.load(kind, self.c(f"getelementptr {kind}, ptr {slot}, i32 {self.c(f'and i32 {lane}, 31')}"))

    def uniform(self, operand: Source, kind: str, what: str) -> str:
        """A source that must be the same in all executing lanes, as a scalar; lanes that differ are a finding."""
        if isinstance(operand, nodes.Immediate):
            return str(int(operand.value))
        from ptxgen.runtime.cpu.support.core import FAULT_OPERAND

        element = f"i{element_bits(vector_of(kind))}"
        value = self.src(operand, kind)
        first = self.first_lane(value, element)
        same = self.bits(self.c(f"icmp eq {vec(element)} {value}, {self.c.spread(element, first)}"))
        others = self.c(f"and i32 {self.exec_mask()}, {self.c(f'xor i32 {same}, -1')}")
        self.fault_if(others, FAULT_OPERAND, remark=what)
        return first

    # findings ---------------------------------------------------------------------------------------------------
    def fault_if(
        self, mask: str, kind: int, *, address: str = "0", size: object = 0, extra: str = "0", remark: str = ""
    ) -> None:
        """Report a finding where any lane is in `mask`. `remark` is shown in the report as it is."""
        site = self.new_site(remark) if remark else self.site()
        with self.c.if_(self.c(f"icmp ne i32 {mask}, 0"), likely=False):
            self.c.do(
                f"call void @fault(ptr %w, i32 {site}, i32 {kind}, i32 {mask}, i32 {size}, i64 {address}, i64 {extra})"
            )

    def check_aligned(self) -> None:
        """Check mode: report lanes of the warp that have not exited and are missing from an .aligned instruction."""
        from ptxgen.runtime.cpu.support.core import FAULT_DIVERGED

        if self.check:
            gone = self.c.load("i32", "%w", WARP["exited"])
            here = self.c(f"or i32 {self.mask}, {gone}")
            self.fault_if(self.c(f"xor i32 {here}, -1"), FAULT_DIVERGED)

    # jumps ------------------------------------------------------------------------------------------------------
    def enqueue(self, block: Block, mask: str) -> None:
        """Lanes continue at a block at the next dispatch."""
        c = self.c
        slot = c.at("%w", self.shape.pending + 4 * block.number)
        c.store("i32", c(f"or i32 {c.load('i32', slot)}, {mask}"), slot)
        ready = c.at("%w", READY + 8 * (block.number // 64))
        c.store("i64", c(f"or i64 {c.load('i64', ready)}, {_signed(1 << block.number % 64)}"), ready)
        if self.shape.words > 1:
            summary = c.load("i64", "%w", WARP["summary"])
            c.store("i64", c(f"or i64 {summary}, {_signed(1 << block.number // 64)}"), "%w", WARP["summary"])

    def goto(self, block: Block, mask: str) -> None:
        """All of the block's lanes go on at `block`: at once if no ready block comes before it."""
        c = self.c
        c.store("i32", mask, "%w", WARP["mask"])
        number = block.number
        if self.shape.words == 1:
            earlier = c(f"and i64 {c.load('i64', '%w', READY)}, {_signed((2 << number) - 1 & (1 << 64) - 1)}")
        else:
            earlier = c(f"and i64 {c.load('i64', '%w', WARP['summary'])}, {_signed((2 << number // 64) - 1)}")
        direct = c(f"icmp eq i64 {earlier}, 0")
        if number <= self.block.number:
            left = c(f"sub i32 {c.load('i32', '%w', WARP['budget'])}, 1")
            c.store("i32", left, "%w", WARP["budget"])
            direct = c(f"and i1 {direct}, {c(f'icmp sge i32 {left}, 0')}")
        c.do(f"br i1 {direct}, label %b{number}, label %enq{number}")
        self.ended = True

    def branch(self, taken: str, target: Block, other: Block) -> None:
        """The lanes in `taken` go to `target`, the block's other lanes to `other`."""
        c = self.c
        rest = c(f"and i32 {self.mask}, {c(f'xor i32 {taken}, -1')}")
        stem = c.fresh("")
        c.do(f"br i1 {c(f'icmp eq i32 {rest}, 0')}, label %all{stem}, label %notall{stem}")
        c.label(f"all{stem}")
        self.goto(target, self.mask)
        c.label(f"notall{stem}")
        c.do(f"br i1 {c(f'icmp eq i32 {taken}, 0')}, label %none{stem}, label %both{stem}")
        c.label(f"none{stem}")
        self.goto(other, self.mask)
        c.label(f"both{stem}")
        self.enqueue(target, taken)
        self.enqueue(other, rest)
        if min(target.number, other.number) <= self.block.number:
            left = c(f"sub i32 {c.load('i32', '%w', WARP['budget'])}, 1")
            c.store("i32", left, "%w", WARP["budget"])
        c.do("br label %dispatch")

    def to_dispatch(self) -> None:
        """End the block: its lanes have been enqueued, parked or have exited."""
        self.c.do("br label %dispatch")
        self.ended = True

    # waiting ----------------------------------------------------------------------------------------------------
    def resume_block(self) -> int:
        """Number of the block at which lanes that wait here continue."""
        assert self.block.next is not None
        return self.block.next.number

    def converge(self, members: str) -> None:
        """Wait until all lanes of `members` (an i32) that have not exited are here. First in a block."""
        c = self.c
        gone = c.load("i32", "%w", WARP["exited"])
        slot = c.at("%w", self.shape.pending + 4 * self.block.number)
        waiting = c.load("i32", slot)
        joined = c(f"or i32 {self.mask}, {c(f'and i32 {waiting}, {members}')}")
        accounted = c(f"or i32 {joined}, {gone}")
        missing = c(f"and i32 {members}, {c(f'xor i32 {accounted}, -1')}")
        stem = c.fresh("")
        c.do(f"br i1 {c(f'icmp eq i32 {missing}, 0')}, label %here{stem}, label %wait{stem}")
        c.label(f"wait{stem}")  # not ready: the next lanes that come make it so
        c.store("i32", c(f"or i32 {waiting}, {self.mask}"), slot)
        c.do("br label %dispatch")
        c.label(f"here{stem}")
        c.store("i32", c(f"and i32 {waiting}, {c(f'xor i32 {joined}, -1')}"), slot)
        self.mask = joined
        self._mask_vector = ""
        self._guards.clear()

    def wait_here(self, ready: str, kind: int, number: str, argument: str) -> None:
        """Lanes of `ready` (an i32) go on; the others park and run this block again when woken. First in a block."""
        c = self.c
        site = self.new_site()
        late = c(f"and i32 {self.mask}, {c(f'xor i32 {ready}, -1')}")
        with c.if_(c(f"icmp ne i32 {late}, 0")):
            c.do(
                f"call void @park(ptr %w, i32 {kind}, i32 {number}, i32 {late}, i32 {self.block.number}, i32 {site}, "
                f"i32 0, i64 {argument})"
            )
        stem = c.fresh("")
        passing = c(f"and i32 {self.mask}, {ready}")
        c.do(f"br i1 {c(f'icmp eq i32 {passing}, 0')}, label %dispatch, label %pass{stem}")
        c.label(f"pass{stem}")
        self.mask = passing
        self._mask_vector = ""
        self._guards.clear()

    # the dispatcher ---------------------------------------------------------------------------------------------
    def _emit_dispatch(self) -> None:
        """Pick the lowest ready block, or return: faulted, out of budget, or nothing ready."""
        c = self.c
        c.label("dispatch")
        out_of_budget = c(f"icmp slt i32 {c.load('i32', '%w', WARP['budget'])}, 0")
        if self.shape.words == 1:
            ready = c.load("i64", "%w", READY)
            rotated = c(f"icmp ne i32 {c.load('i32', '%w', WARP['start'])}, 0")
            special = c(f"or i1 {out_of_budget}, {rotated}")
            c.do(f"br i1 {special}, label %search, label %lowest")
            c.label("lowest")
            c.do(f"br i1 {c(f'icmp eq i64 {ready}, 0')}, label %idle, label %found")
            c.label("found")
            wide = c(f"call i64 @llvm.cttz.i64(i64 {ready}, i1 true)")
            c.store("i64", c(f"and i64 {ready}, {c(f'sub i64 {ready}, 1')}"), "%w", READY)
            low = c(f"trunc i64 {wide} to i32")
            c.do("br label %chosen")
        else:
            c.do("br label %search")
        c.label("search")
        searched = c("call i32 @next.block(ptr %w)")
        c.do("switch i32 " + searched + ", label %chosen [i32 -1, label %idle i32 0, label %faulted]")
        c.label("chosen")
        number = c(f"phi i32 [{searched}, %search]" + (f", [{low}, %found]" if self.shape.words == 1 else ""))
        c.store("i32", number, "%w", WARP["block"])
        slot = c(f"getelementptr i32, ptr {c.at('%w', self.shape.pending)}, i32 {number}")
        budget_gone = c(f"icmp slt i32 {c.load('i32', '%w', WARP['budget'])}, 0")
        c.do(f"br i1 {budget_gone}, label %yield, label %go")
        c.label("go")
        c.store("i32", c.load("i32", slot), "%w", WARP["mask"])
        c.store("i32", 0, slot)
        cases = " ".join(f"i32 {b.number}, label %b{b.number}" for b in self.flow.blocks)
        c.do(f"switch i32 {number}, label %faulted [{cases}]")
        c.label("yield")
        c.do(f"call void @enqueue(ptr %w, i32 {number}, i32 0)")
        c.do(f"ret i32 {YIELDED}")
        c.label("faulted")
        c.do(f"ret i32 {FAULTED}")
        c.label("idle")
        everyone = c(f"icmp eq i32 {c.load('i32', '%w', WARP['exited'])}, -1")
        c.do("ret i32 " + c(f"select i1 {everyone}, i32 {DONE}, i32 {PARKED}"))


class _DefinedLanes:
    """Check mode: which lanes of a register have been written, for registers that some path leaves unwritten."""

    def __init__(self, emitter: Emitter) -> None:
        self.e = emitter
        self.now: dict[int, str | None] = {}  # lanes as an i32; None: all that are here
        self.base: dict[int, str] = {}
        self.checked: set[int] = set()
        self.silent = False
        self.sources: str | None = None  # of the present instruction: lanes in which all it has read is defined

    def begin(self, block: Block) -> None:
        """Forget the previous block."""
        self.now, self.base, self.checked = {}, {}, set()
        self.block = block

    def lanes(self, reg: Reg) -> str | None:
        """The lanes in which the register is defined, or None if that is known to be all."""
        if reg.index not in self.now:
            if not self.e.flow.loose >> reg.index & 1 or self.block.defined_in >> reg.index & 1:
                self.now[reg.index] = None
            else:
                self.base[reg.index] = self.e.c.load("i32", self._slot(reg))
                self.now[reg.index] = self.base[reg.index]
        return self.now[reg.index]

    def _slot(self, reg: Reg) -> str:
        return self.e.c.at("%w", self.e.place(-1 - reg.index, 4))

    def check(self, reg: Reg) -> None:
        """A register is read: by arithmetic, whose result is then no more defined than it; by anything else, which is
        reported for the executing lanes in which it was not written."""
        from ptxgen.runtime.cpu.support.core import FAULT_REGISTER

        e = self.e
        if self.silent:
            return
        lanes = self.lanes(reg)
        if lanes is None:
            return
        if e.op.family is not None and e.op.family.pure and reg is not e.op.guard:
            self.sources = lanes if self.sources is None else e.c(f"and i32 {self.sources}, {lanes}")
            return
        if reg.index in self.checked:
            return
        mask = e.mask
        if e.op.guard is not None and e.op.guard is not reg:
            held = e._values.get(e.op.guard.index, {}).get("i32") or e._from_file(e.op.guard, "i32")
            mask = e.c(f"and i32 {mask}, {e.c(f'xor i32 {held}, -1') if e.op.negated else held}")
        else:
            self.checked.add(reg.index)
        e.fault_if(e.c(f"and i32 {mask}, {e.c(f'xor i32 {lanes}, -1')}"), FAULT_REGISTER, remark=reg.name)

    def write(self, reg: Reg) -> None:
        """The executing lanes of the register are now as defined as what the instruction has read."""
        e = self.e
        if e.op.guard is None:
            self.now[reg.index] = self.sources
            self.checked.discard(reg.index)
            return
        before = self.lanes(reg)
        if before is None and self.sources is None:
            return
        self.checked.discard(reg.index)
        here = e.exec_mask()
        kept = e.c(f"and i32 {before or '-1'}, {e.c(f'xor i32 {here}, -1')}")
        self.now[reg.index] = e.c(f"or i32 {kept}, {e.c(f'and i32 {self.sources or -1}, {here}')}")

    def spill(self) -> None:
        """Keep the lanes for later blocks, for every register whose state is not known statically everywhere."""
        e = self.e
        for index, lanes in self.now.items():
            if not (e.flow.loose & self.block.live_out) >> index & 1 or lanes == self.base.get(index, ""):
                continue
            slot = self._slot(e.flow.registers[index])
            others = e.c(f"and i32 {e.c.load('i32', slot)}, {e.c(f'xor i32 {e.mask}, -1')}")
            e.c.store("i32", e.c(f"or i32 {others}, {e.c(f'and i32 {lanes or -1}, {e.mask}')}"), slot)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
