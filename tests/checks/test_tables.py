"""The tables of the checks, row by row: an instruction's largest result, what a compare says, special registers.

Each rule is held against values: no result of values within their bounds is above the rule's, and one reaches it.
"""

from __future__ import annotations

import itertools

import pytest

from ptxgen.checks.comparisons import Less, facts_of
from ptxgen.checks.largest import ANY, HALF, LOADED, RULES, SPECIAL
from ptxgen.nodes import Immediate, Instruction, Negated, Register

MASK = ANY


def signed(value: int) -> int:
    return value - (1 << 32) if value & HALF else value


MEANS = {
    "mov": lambda a, b, c: a, "cvt": lambda a, b, c: a, "shfl": lambda a, b, c: a, "redux": lambda a, b, c: a,
    "add": lambda a, b, c: a + b, "mul": lambda a, b, c: a * b, "mad": lambda a, b, c: a * b + c,
    "and": lambda a, b, c: a & b, "or": lambda a, b, c: a | b, "xor": lambda a, b, c: a ^ b,
    "min.u32": lambda a, b, c: min(a, b), "max.u32": lambda a, b, c: max(a, b), "selp": lambda a, b, c: b,
    "min.s32": lambda a, b, c: min(a, b, key=signed), "max.s32": lambda a, b, c: max(a, b, key=signed),
    "shl": lambda a, b, c: a << min(b, 32), "shr": lambda a, b, c: a >> min(b, 32),
    "rem": lambda a, b, c: a % b if b else 0, "div": lambda a, b, c: a // b if b else a,
    "popc": lambda a, b, c: a.bit_count(), "clz": lambda a, b, c: 32 - a.bit_length(),
    "bfe": lambda a, b, c: (a >> b) & ((1 << min(c, 32)) - 1), "sub": lambda a, b, c: (a - b) & MASK,
}  # fmt: skip
BOUNDS = (0, 1, 3, 7)
LARGE = (HALF - 1, HALF, ANY)


def means(opcode):
    return MEANS.get(opcode) or MEANS[opcode.partition(".")[0]]


@pytest.mark.parametrize("opcode", RULES)
def test_a_rule_is_above_every_result_and_some_result_reaches_it(opcode):
    """Over all values within small bounds, of registers; a product may be of 64 bits, which the caller sees."""
    wide = opcode.startswith(("add", "mul", "mad", "shl"))
    reached = []
    for bounds in itertools.product(BOUNDS, repeat=3):
        said = RULES[opcode](list(bounds), [False] * 3)
        results = [means(opcode)(*values) for values in itertools.product(*(range(b + 1) for b in bounds))]
        assert max(results) <= said, bounds
        reached.append(max(results) == said)
    assert any(reached) or opcode.startswith(("sub", "popc"))
    assert wide or RULES[opcode]([7, 7, 7], [False] * 3) <= ANY


@pytest.mark.parametrize("opcode", ["min.s32", "max.s32"])
@pytest.mark.parametrize("bounds", list(itertools.product((5, *LARGE), repeat=2)))
def test_signed_rules_know_that_large_values_are_negative(opcode, bounds):
    said = RULES[opcode]([*bounds, 0], [False] * 3)
    edges = [[v for v in (0, 5, HALF - 1, HALF, ANY) if v <= b] for b in bounds]
    largest = max(means(opcode)(a, b, 0) for a, b in itertools.product(*edges))
    assert largest <= said
    assert largest == said or HALF in bounds


@pytest.mark.parametrize(("opcode", "number", "said"), [
    ("shr.u32", 2, 25), ("shr.b32", 40, 0), ("div.u32", 8, 12), ("div.u32", 0, 100), ("bfe.u32", 4, 15),
    ("bfe.u32", 32, 100), ("rem.u32", 9, 8), ("rem.u32", 0, 0),
])  # fmt: skip
def test_numbers_bound_more_than_registers(opcode, number, said):
    sources = [100, 0, number] if opcode == "bfe.u32" else [100, number, 0]
    assert RULES[opcode](sources, [False, True, True]) == said
    if opcode != "rem.u32":
        assert RULES[opcode](sources, [False] * 3) == 100


def test_special_registers_and_loads_have_their_largest_values():
    """A launch has at most 2³¹ - 1 by 65535 by 65535 CTAs of 1024 threads, 1024 by 1024 by 64; clusters of 32."""
    block, grid = {"x": 1024, "y": 1024, "z": 64}, {"y": 65535, "z": 65535}
    want = {f"%ntid.{axis}": n for axis, n in block.items()} | {f"%tid.{axis}": n - 1 for axis, n in block.items()}
    want |= {f"%nctaid.{axis}": n for axis, n in grid.items()} | {f"%ctaid.{axis}": n - 1 for axis, n in grid.items()}
    want |= {"%laneid": 31, "%warpid": 63, "%nwarpid": 64, "%cluster_ctarank": 31, "%cluster_nctarank": 32,
             "%cluster_ctaid.x": 31, "%cluster_nctaid.x": 32}  # fmt: skip
    assert want == SPECIAL
    assert {name: (1 << int(name[1:])) - 1 for name in LOADED} == LOADED


def compare(opcode, *sources):
    known = {"%p2": ((Less("c", "d", False, False),), (Less("d", "c", True, False),))}
    return facts_of(Instruction(opcode, (Register("%p1"), *sources)), known)


def holds(fact, values):
    low, high = (values.get(side, side) for side in (fact.low, fact.high))
    low, high = (signed(side) if fact.signed else side for side in (low, high))
    return low < high or (fact.equal and low == high)


ORDERS = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b, "ls": lambda a, b: a <= b, "hi": lambda a, b: a > b, "hs": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["u32", "s32"])
@pytest.mark.parametrize("word", ORDERS)
def test_what_a_compare_says_is_so(word, kind):
    true, false = compare(f"setp.{word}.{kind}", Register("a"), Register("b"))
    assert true or false, "something is said"
    assert word in ("eq", "ne") or (true and false)
    for a, b in itertools.product((0, 1, 2, HALF, ANY), repeat=2):
        pair = (signed(a), signed(b)) if kind == "s32" else (a, b)
        said = true if ORDERS[word](*pair) else false
        assert all(holds(fact, {"a": a, "b": b}) for fact in said), (a, b)
        unsaid = false if ORDERS[word](*pair) else true
        assert not unsaid or not all(holds(fact, {"a": a, "b": b}) for fact in unsaid), (a, b)


def test_compares_are_joined_as_logic_has_it():
    own = Less("a", 7, False, False), Less(7, "a", True, False)
    other = Less("c", "d", False, False), Less("d", "c", True, False)
    two = Register("a"), Immediate("7"), Register("%p2")
    assert compare("setp.lt.and.u32", *two) == (own[:1] + other[:1], ())
    assert compare("setp.lt.or.u32", *two) == ((), own[1:] + other[1:])
    assert compare("setp.lt.xor.u32", *two) is None
    pair = Register("%p2"), Negated(Register("%p2"))
    assert compare("and.pred", *pair) == ((other[0], other[1]), ())
    assert compare("or.pred", *pair) == ((), (other[1], other[0]))
    assert compare("not.pred", pair[0]) == ((other[1],), (other[0],))
    assert compare("mov.pred", pair[0]) == ((other[0],), (other[1],))
    assert compare("setp.lt.f32", *two[:2]) is None
    assert compare("setp.lt.u32", Register("a"), Immediate("1.5")) is None
