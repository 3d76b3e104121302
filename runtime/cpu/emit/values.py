"""A warp function's masks and registers while a block is emitted. Owns the register file; knows no operand and no jump.

A register is an LLVM value inside a block and 32 lanes of memory (the file) between blocks, written back under the
block's mask. Masks and predicates travel as one i32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.emit.definedness import DefinedLanes
from ptxgen.runtime.cpu.emit.llvm_types import integer_vector
from ptxgen.runtime.cpu.flow.flow import Block, Flow, Op
from ptxgen.runtime.cpu.flow.symbols import Reg, round_up
from ptxgen.runtime.cpu.native.host import Host
from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.native.layout import Shape

_SUFFIXES = {"i16": "i16", "i32": "i32", "i64": "i64", "float": "f32", "double": "f64"}  # of vectors of intrinsics
_WAIT, _MAKES = ("mbarrier", "try_wait"), ("tensormap", "cp_fenceproxy")


class Values:
    """The present block's masks and registers.

    `cta`, `thread` and `launch` point to native state, `scratch` to memory for vectors of registers, `mask` is the
    block's lanes. `waits`, `makes_maps`: check mode, and the entry waits for
    mbarriers, or makes tensor maps.
    """

    c: Code
    cta: str
    thread: str
    launch: str
    scratch: str
    next: str  # pointer to the number of a block
    mask: str

    def __init__(self, module: nodes.Module, flow: Flow, name: str, check: bool, host: Host) -> None:
        self.module, self.flow, self.check = module, flow, check
        self.native_half, self.masked_stores = host.native_half, host.masked_stores
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
        self._homes: dict[int, int] = {}  # offsets in local memory of calls' parameters that have an address
        self._pointers: dict[int, str] = {}
        self._tables: dict[str, str] = {}  # name by text
        self.defined: DefinedLanes | None = None  # in check mode
        begins = {op.words[:2] for block in flow.blocks for op in block.ops} if check else set()
        self.waits, self.makes_maps = _WAIT in begins, _MAKES in begins
        self.blocks = {block.key: block for block in flow.blocks}
        self.cta = self.thread = self.launch = self.scratch = self.mask = self._mask_vector = ""
        self.ended = False

    def place(self, index: int, size: int) -> int:
        """Offset in a warp of a file slot, made when first asked for."""
        if index not in self._offsets:
            here = round_up(self.shape.registers, min(size, 64))
            self._offsets[index] = here
            self.shape = Shape(self.shape.blocks, here + size)
        return self.shape.file + self._offsets[index]

    def table(self, numbers: list[int]) -> str:
        """Name of a constant array of i32."""
        text = f"[{len(numbers)} x i32] [{', '.join(f'i32 {n}' for n in numbers)}]"
        return self._tables.setdefault(text, f"@table{len(self._tables)}")

    def tables(self) -> str:
        """The constant arrays that the function mentions, as a module has them before it."""
        return "".join(f"{name} = private constant {text}\n" for text, name in self._tables.items())

    def error(self, what: str) -> IsaError:
        """An `IsaError` with file, line and text of the current instruction."""
        if what.startswith(self.module.file):
            return IsaError(what)
        return IsaError(self.module.refusal(self.op.line, what, self.op.text))

    def unsupported(self, what: str = "") -> IsaError:
        """The error for a form that this executor lacks."""
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
        value = self.read(op.guard, "i32")
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
    def slot(self, reg: Reg) -> str:
        """Pointer to a register's 32 lanes in the file."""
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
                held[kind] = self.c.load(kind, self.slot(reg), align=min(64, 4 * reg.bits))
        return held[kind]

    def held(self, reg: Reg) -> str:
        """The lanes in which a predicate holds, read without a check."""
        return self._values.get(reg.index, {}).get("i32") or self._from_file(reg, "i32")

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
                c.store("i32", c(f"or i32 {new}, {kept}"), self.slot(reg))
            else:
                whole = integer_vector(reg.bits) if kind.startswith("<64") else kind
                value = self.cast(value, kind, whole)
                if not self.flow.only_arithmetic >> index & 1:
                    value = self._canonical(value)
                self._keep(reg, value, whole)
        self._dirty.clear()
        if self.defined:
            self.defined.spill()

    def _keep(self, reg: Reg, value: str, kind: str) -> None:
        """Put a register's value into the file, in the block's lanes."""
        c, align = self.c, min(64, 4 * reg.bits)
        element = kind.removeprefix("<32 x ").removesuffix(">")
        if self.masked_stores and element in _SUFFIXES:
            c.do(
                f"call void @llvm.masked.store.v32{_SUFFIXES[element]}.p0({kind} {value}, "
                f"ptr align {align} {self.slot(reg)}, {vec('i1')} {self.mask_vector()})"
            )
        else:
            old = self._from_file(reg, kind)
            new = c(f"select {vec('i1')} {self.mask_vector()}, {kind} {value}, {kind} {old}")
            c.store(kind, new, self.slot(reg), align=align)

    def in_file(self, reg: Reg) -> str:
        """Pointer to a register's 32 lanes, or nothing if this block has given it another value already."""
        if reg.index in self._values:
            return ""
        if self.defined:
            self.defined.check(reg)
        return self.slot(reg)

    def kept_in_file(self, reg: Reg) -> bool:
        """Whether a register is where this block found it, and later blocks read it."""
        return reg.index not in self._values and bool(self.block.live_out >> reg.index & 1)

    def overwrite(self, reg: Reg) -> str:
        """Pointer to a register's 32 lanes, where the present instruction sets all that execute it."""
        self._values.pop(reg.index, None)
        self._old.pop(reg.index, None)
        self._dirty.pop(reg.index, None)
        if self.defined:
            self.defined.write(reg)
        return self.slot(reg)

    def reading(self, carries: bool) -> AbstractContextManager[None]:
        """Operands of which undefined lanes matter here, or only make the results undefined (see `definedness.py`)."""
        return self.defined.reading(carries) if self.defined else nullcontext()

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
