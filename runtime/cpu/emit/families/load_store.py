"""ld, st and fences: every space, vectors, caching hints. The accesses themselves are in `support/load_store.py`."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.move import whole_parameter_address
from ptxgen.runtime.cpu.emit.llvm_types import integer_vector
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import Var, bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.native.layout import ACQUIRE, LAUNCH, LOCAL_WINDOW, OWN_CTA, RELEASE, WARP, WINDOW_SHIFT
from ptxgen.runtime.cpu.support.access import address_type

_SPACES = frozenset({"global", "shared", "local", "const", "param"})
_SYNCHRONISES = {
    RELEASE: {"release", "acq_rel", "sc"}, ACQUIRE: {"acquire", "acq_rel", "sc"}, OWN_CTA: {"cta"},
}  # fmt: skip
_ORDERED = frozenset({"acquire", "release", "relaxed", "volatile", "mmio"})


def space_of(words: tuple[str, ...]) -> str:
    """The state space among an opcode's words; generic without one."""
    for word in words:
        base = word.partition("::")[0]
        if base in _SPACES:
            return base
    return "generic"


def address(e: Emitter, operand: nodes.Address, space: str) -> tuple[str, int]:
    """(addresses of all lanes in the type of the space, offset in bytes to add)."""
    wide = address_type(space) == "i64"
    base = operand.base
    if isinstance(base, nodes.Immediate):
        return splat("i64" if wide else "i32", int(base.value)), operand.offset
    if isinstance(base, nodes.Symbol):
        value = e.symbol(base)
        if space == "generic":
            value = _as_generic(e, base, value)
        return (value if wide else _low(e, value)), operand.offset
    reg = e.reg(base)
    if reg is None or reg.bits not in (32, 64):
        raise e.error(f"operand {operand}: the address must be a 32- or 64-bit register")
    if wide:
        value = e.src(base, "u64")
        if reg.bits == 32 and space_of(e.op.words) == "param":
            value = whole_parameter_address(e, value)
        return value, operand.offset
    if reg.bits == 64:  # the sum is the address: the register alone may be below the window
        value = e.read(reg, vec("i64"))
        if operand.offset:
            value = e.c(f"add {vec('i64')} {value}, {splat('i64', operand.offset)}")
        return _low(e, value), 0
    return e.read(reg, vec("i32")), operand.offset


def _as_generic(e: Emitter, symbol: nodes.Symbol, value: str) -> str:
    from ptxgen.runtime.cpu.native.layout import LOCAL_WINDOW, SHARED_WINDOW

    found = e.op.scope.find(symbol.name)
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(found.space if isinstance(found, Var) else "", 0)
    return e.c(f"or {vec('i64')} {value}, {splat('i64', window)}") if window else value


def _low(e: Emitter, value: str) -> str:
    """Addresses of a window in 32 bits. Those that have more bits are sent out of bounds, not back into it."""
    if value.startswith("splat"):
        return value.replace("i64", "i32")
    limit = splat("i64", 0xFFFFFFFF)
    small = e.c(f"call {vec('i64')} @llvm.umin.v32i64({vec('i64')} {value}, {vec('i64')} {limit})")
    return e.c(f"trunc {vec('i64')} {small} to {vec('i32')}")


def _vector_length(words: tuple[str, ...]) -> int:
    return next((int(w[1:]) for w in words if w in ("v2", "v4", "v8")), 1)


def _items(operand: Source, count: int, e: Emitter) -> list[Source]:
    items = list(operand.items) if isinstance(operand, nodes.Vector) else [operand]
    if len(items) != count:
        raise e.error(f"operand {operand}: must have {count} elements")
    return items  # type: ignore[return-value]


@emits("ld", "ldu")
def load(e: Emitter, op: Op) -> None:
    """d = [a]."""
    space, kind, count = space_of(op.words), op.words[-1], _vector_length(op.words)
    source = op.operands[1]
    if not isinstance(source, nodes.Address):
        raise e.error(f"operand {source}: must be an address")
    targets = _items(op.operands[0], count, e)
    variable = _parameter(e, source)
    if variable is not None and space == "param":
        _load_parameter(e, variable, source, targets, kind)
        return
    if space == "param":  # an address that `mov` has taken: of the entry's block, or of a copy in local memory
        space = "generic"
    doubted = e.defined is not None and op in e.flow.droppable_loads
    if count > 1 and not doubted and _load_into_file(e, space, source, targets, kind):
        return
    strong = bool(_ORDERED & set(op.words))
    if strong:
        synchronise(e, op, "before", source)
    values = load_values(e, space, source, kind, count)
    if "acquire" in op.words:
        e.c.do("fence acquire")
    if strong:
        synchronise(e, op, "after", source)
    for n, (target, value) in enumerate(zip(targets, values, strict=True)):
        if doubted:
            e.only_defined(_written(e, source, bits_of(kind) // 8, n))
        _store_result(e, target, value, kind)


def _written(e: Emitter, source: nodes.Address, size: int, n: int) -> str:
    """The lanes for which the n-th element in shared memory is written (an i32)."""
    addresses, offset = address(e, source, "shared")
    head = f"ptr %w, {vec('i32')} {addresses}, i64 {offset + n * size}"
    return e.c(f"call i32 @written.shared({head}, i32 {e.exec_mask()}, i64 {size})")


def _load_into_file(e: Emitter, space: str, source: nodes.Address, targets: list[Source], kind: str) -> bool:
    """Load to where the registers live between blocks, if all of them are to be kept there anyway."""
    regs = [reg for reg in map(e.reg, targets) if reg is not None and reg.bits == bits_of(kind)]
    if len(regs) < len(targets) or "acquire" in e.op.words or not all(map(e.kept_in_file, regs)):
        return False
    addresses, offset = address(e, source, space)
    name = f"{'global' if space in ('const', 'param') else space}.v{len(regs)}.b{bits_of(kind)}{_check_word(e)}"
    head = f"ptr %w, {vec(address_type(space))} {addresses}, i64 {offset}, i32 {e.exec_mask()}, i32 {e.new_site()}"
    into = ", ".join(f"ptr {e.overwrite(reg)}" for reg in regs)
    e.c.do(f"call void @into.{name}({head}, {into})")
    return True


def _store_result(e: Emitter, target: Source, value: str, kind: str) -> None:
    """Into a register at least as wide; halves of pairs and bytes arrive as integers."""
    bits = bits_of(kind)
    e.dst(target, value, kind if kind[0] == "s" and bits < 64 else f"b{bits}")


def load_values(e: Emitter, space: str, source: nodes.Address, kind: str, count: int) -> list[str]:
    """`count` integer vectors read from memory."""
    bits = bits_of(kind)
    addresses, offset = address(e, source, space)
    name = f"ld.{'global' if space in ('const', 'param') else space}.v{count}.b{bits}{_check_word(e)}"
    head = f"ptr %w, {vec(address_type(space))} {addresses}, i64 {offset}, i32 {e.exec_mask()}, i32 {e.new_site()}"
    vector = integer_vector(bits)
    if count == 1:
        return [e.c(f"call {vector} @{name}({head})")]
    e.c.do(f"call void @{name}({head}, ptr {e.scratch})")
    return [e.c.load(vector, e.scratch, 4 * bits * n, align=min(64, 4 * bits)) for n in range(count)]


def synchronise(e: Emitter, op: Op, when: str, place: nodes.Address) -> None:
    """In check mode, before or after an access: what it releases or acquires, and in which scope. It may be a lock or
    a flag between lanes, too."""
    space = space_of(op.words)
    if not e.check or space not in ("global", "shared", "generic"):
        return
    how = sum(bit for bit, words in _SYNCHRONISES.items() if words & set(op.words))
    if when == "before":
        e.c.store("i32", how, "%w", WARP["how"])
    if when == "before" and op.words[0] == "ld":
        return
    addresses, offset = address(e, place, space)
    head = f"ptr %w, {vec(address_type(space))} {addresses}, i64 {offset}, i32 {e.exec_mask()}, i32 {how}"
    if when == "before" or op.words[0] in ("ld", "atom"):
        e.c.do(f"call void @order.{when}.{space}({head})")
    if when == "after" and space != "shared":
        e.c.do("call void @clock.turn(ptr %w)")
    if when == "after":  # bulk reductions are of no scope
        e.c.store("i32", 0, "%w", WARP["how"])


def _check_word(e: Emitter) -> str:
    """What check mode adds to the name of an access."""
    if not e.check or e.op in e.flow.idle_loads:
        return ""
    if "nc" in e.op.words:
        return ".constant"
    if _ORDERED & set(e.op.words):
        return ".ordered"
    return ".glance" if e.op in e.flow.unused_loads or e.op in e.flow.droppable_loads else ".check"


def _parameter(e: Emitter, operand: nodes.Address) -> Var | None:
    if isinstance(operand.base, nodes.Symbol):
        found = e.op.scope.find(operand.base.name)
        if isinstance(found, Var) and found.space == "param":
            return found
    return None


def _load_parameter(e: Emitter, variable: Var, source: nodes.Address, targets: list[Source], kind: str) -> None:
    """From the entry's parameter block (the same for all lanes), or from a call's parameter (hidden registers)."""
    bits = bits_of(kind)
    assert isinstance(source.base, nodes.Symbol)
    offset = source.base.offset + source.offset
    if offset < 0 or offset + bits // 8 * len(targets) > variable.size or offset % (bits // 8):
        raise e.error(f"operand {source}: must lie aligned within the {variable.size} bytes of {variable.name}")
    for n, target in enumerate(targets):
        here = offset + n * bits // 8
        if variable.words:
            value = _from_words(e, variable, here, bits)
        else:
            block = e.c.load("ptr", e.launch, LAUNCH["params"])
            value = e.c.spread(f"i{bits}", e.c.load(f"i{bits}", block, variable.offset + here, align=min(bits // 8, 8)))
        _store_result(e, target, value, kind)


def _from_words(e: Emitter, variable: Var, offset: int, bits: int) -> str:
    """Bits of a call's parameter, which is kept as words."""
    word, start = variable.words[offset // 4], 8 * (offset % 4)
    i32 = vec("i32")
    if bits == 32:
        return e.read(word, i32)
    if bits < 32:
        value = e.read(word, i32)
        moved = e.c(f"lshr {i32} {value}, {splat('i32', start)}") if start else value
        return e.c(f"trunc {i32} {moved} to {integer_vector(bits)}")
    whole = integer_vector(bits)
    result = ""
    for n in range(bits // 32):
        part = e.c(f"zext {i32} {e.read(variable.words[offset // 4 + n], i32)} to {whole}")
        if n:
            up = e.c(f"shl {whole} {part}, {splat(f'i{bits}', 32 * n)}")
            part = e.c(f"or {whole} {result}, {up}")
        result = part
    return result


def _into_words(e: Emitter, variable: Var, offset: int, bits: int, value: str) -> None:
    word, start = variable.words[offset // 4], 8 * (offset % 4)
    i32 = vec("i32")
    if bits < 32:
        if e.defined is not None:
            e.defined.silent = True
        old = e.read(word, i32)
        if e.defined is not None:
            e.defined.silent = False
            e.defined.join(word)
        mask = ((1 << bits) - 1) << start
        part = e.c(f"shl {i32} {e.c(f'zext {integer_vector(bits)} {value} to {i32}')}, {splat('i32', start)}")
        kept = e.c(f"and {i32} {old}, {splat('i32', ~mask & 0xFFFFFFFF)}")
        e.write(word, e.c(f"or {i32} {kept}, {part}"), i32)
        return
    for n in range(bits // 32):
        whole = integer_vector(bits)
        moved = e.c(f"lshr {whole} {value}, {splat(f'i{bits}', 32 * n)}") if n else value
        part = e.c(f"trunc {whole} {moved} to {i32}") if bits > 32 else moved
        e.write(variable.words[offset // 4 + n], part, i32)


@emits("st", outputs=0)
def store(e: Emitter, op: Op) -> None:
    """[a] = b."""
    space, kind, count = space_of(op.words), op.words[-1], _vector_length(op.words)
    target = op.operands[0]
    if not isinstance(target, nodes.Address):
        raise e.error(f"operand {target}: must be an address")
    sources = _items(op.operands[1], count, e)
    bits = bits_of(kind)
    variable = _parameter(e, target)
    if variable is not None and space == "param":
        assert isinstance(target.base, nodes.Symbol)
        for n, source in enumerate(sources):
            value = e.src(source, f"b{bits}")
            _into_words(e, variable, target.base.offset + target.offset + n * bits // 8, bits, value)
            if e.defined is not None:
                e.defined.take()
        return
    if e.defined is not None:
        e.defined.width = bits // 8
    with e.reading(carries=space in ("local", "generic")):
        values = [e.src(source, f"b{bits}") for source in sources]
    if e.defined is not None:
        e.defined.width = 0
    if "release" in op.words:
        e.c.do("fence release")
    if _ORDERED & set(op.words):
        synchronise(e, op, "before", target)
    addresses, offset = address(e, target, space)
    if space in ("const", "param"):
        raise e.unsupported()
    if space == "generic" and e.defined is not None:
        _demand_defined(e, sources, addresses, offset)
    head = f"ptr %w, {vec(address_type(space))} {addresses}, i64 {offset}, i32 {e.exec_mask()}, i32 {e.new_site()}"
    vector = integer_vector(bits)
    name = f"st.{space}.v{count}.b{bits}{_check_word(e)}"
    if count == 1:
        e.c.do(f"call void @{name}({head}, {vector} {values[0]})")
    else:
        for n, value in enumerate(values):
            e.c.store(vector, value, e.scratch, 4 * bits * n, align=min(64, 4 * bits))
        e.c.do(f"call void @{name}({head}, ptr {e.scratch})")
    if _ORDERED & set(op.words):
        synchronise(e, op, "after", target)


def put(e: Emitter, target: Source, offset: int, bits: int, value: str) -> None:
    """Store a vector of `bits`-bit integers `offset` bytes past an address, as `st` does."""
    if not isinstance(target, nodes.Address):
        raise e.error(f"operand {target}: must be an address")
    space = space_of(e.op.words)
    addresses, more = address(e, target, space)
    head = f"ptr %w, {vec(address_type(space))} {addresses}, i64 {more + offset}, i32 {e.exec_mask()}"
    name = f"st.{space}.v1.b{bits}{_check_word(e)}"
    e.c.do(f"call void @{name}({head}, i32 {e.new_site()}, {vec(f'i{bits}')} {value})")


def _demand_defined(e: Emitter, sources: list[Source], addresses: str, offset: int) -> None:
    """Report undefined lanes of what is stored, but not those that store to local memory, which carries anything."""
    assert e.defined is not None
    if e.defined.take() is None:
        return
    absolute = e.c(f"add {vec('i64')} {addresses}, {splat('i64', offset)}")
    window = e.c(f"lshr {vec('i64')} {absolute}, {splat('i64', WINDOW_SHIFT)}")
    local = e.bits(e.c(f"icmp eq {vec('i64')} {window}, {splat('i64', LOCAL_WINDOW >> WINDOW_SHIFT)}"))
    elsewhere = e.c(f"and i32 {e.exec_mask()}, {e.c(f'xor i32 {local}, -1')}")
    e.defined.width = bits_of(e.op.words[-1]) // 8
    for reg in dict.fromkeys(filter(None, map(e.reg, sources))):
        written = e.defined.lanes(reg)
        if written is not None:
            e.defined.report(reg, e.c(f"and i32 {elsewhere}, {e.c(f'xor i32 {written}, -1')}"))
    e.defined.width = 0


@emits("membar", "fence", outputs=0)
def fence(e: Emitter, op: Op) -> None:
    """Orders accesses between host threads; within one, the executor is in order anyway."""
    e.c.do("fence seq_cst")
    if e.check and ("mbarrier_init" in op.words or any(word.startswith("async") for word in op.words)):
        e.c.do("call void @proxy.fence(ptr %w)")
    if e.check and "proxy" not in op.words:
        e.c.do("call void @clock.fence(ptr %w)")
        if "cta" not in op.words:
            e.c.do("call void @order.fence(ptr %w)")
