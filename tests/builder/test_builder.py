"""What the builder refuses, each with kernel, fragment, and the line of the kernel type's source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptxgen.builder import SINK, Builder
from ptxgen.builder.values import Addr, Or, Reg, Table, immediate
from ptxgen.errors import IsaError
from ptxgen.targets import target
from tests.support.demo_kernel import Demo

SM_75, SM_90 = target("sm_75"), target("sm_90")


def builder(where: str = "sm_90") -> Builder:
    return Builder(Demo(), target(where))


def build(code: Callable[[Builder], object], where: str = "sm_90") -> list[str]:
    """The lines of a fragment with this code."""
    b = builder(where)
    with b.fragment("body") as body:
        code(b)
    b.finish()
    return body.lines


def refused(code: Callable[[Builder], object], where: str = "sm_90") -> str:
    """The refusal, after a check that it names kernel, fragment, and the line of `code`."""
    with pytest.raises(IsaError) as error:
        build(code, where)
    text = str(error.value)
    place = re.match(r"kernel demo, fragment 'body', (\S+\.py):(\d+): ", text)
    assert place, text
    source, first = inspect.getsourcelines(code)
    assert Path(place[1]).name == Path(__file__).name
    assert first <= int(place[2]) < first + len(source), text
    return text


def a(b: Builder, name: str, type: str) -> Reg:
    """A register that something has written."""
    reg = b.reg(name, type)
    b.op(f"mov.{type}", reg, 0)
    return reg


def test_an_instruction_returns_its_destination_and_prints_as_ptx() -> None:
    def code(b: Builder) -> None:
        x = b.op("mov.u32", "x", b.special("tid.x"))
        assert x == Reg("x", "u32")
        b.op("add.u32", "y", x, 7)

    assert build(code) == ["    mov.u32 %x, %tid.x;", "    add.u32 %y, %x, 7;"]


def test_vectors_addresses_guards_and_pairs_print_as_ptx() -> None:
    def code(b: Builder) -> None:
        p = b.op("mov.u64", "p", 0)
        v = b.array("v", "f32", 4)
        positive = b.op("setp.gt.u64", "positive", p, 0)
        b.op("ld.global.v4.f32", v[0:4], p[16], pred=positive)
        b.op("st.global.v2.f32", p[-8], v[2:4], pred=~positive)
        b.op("shfl.sync.bfly.b32", Or(v[0], positive), v[1], 1, 31, -1)

    assert build(code)[2:] == [
        "    @%positive ld.global.v4.f32 {%v0, %v1, %v2, %v3}, [%p+16];",
        "    @!%positive st.global.v2.f32 [%p+-8], {%v2, %v3};",
        "    shfl.sync.bfly.b32 %v0|%positive, %v1, 1, 31, -1;",
    ]


@pytest.mark.parametrize(
    ("value", "type", "literal"),
    [
        (1.5, "f32", "0f3FC00000"),
        (2, "f32", "0f40000000"),
        (-0.0, "f32", "0f80000000"),
        (1.5, "f64", "0d3FF8000000000000"),
        (float("inf"), "f32", "0f7F800000"),
        (7, "u32", "7"),
        (-7, "s32", "-7"),
        (-1, "b32", "0xFFFFFFFF"),
        (255, "b32", "255"),
        (0x5410, "b32", "0x5410"),
        (-1, "b64", "0xFFFFFFFFFFFFFFFF"),
    ],
)
def test_immediates_by_the_type_of_their_slot(value: float, type: str, literal: str) -> None:
    assert immediate(value, type) == literal


def test_a_float_immediate_is_explained_beside_its_bits() -> None:
    assert build(lambda b: b.op("mov.f32", "x", 0.1)) == ["    mov.f32 %x, 0f3DCCCCCD;  // 0.1"]


# -- instructions ----------------------------------------------------------------------------------------------------


def test_an_unknown_opcode() -> None:
    assert "add.f23" in refused(lambda b: b.op("add.f23", "x", 1.0, 1.0))


def test_a_modifier_the_instruction_does_not_have() -> None:
    assert "ld.global.v3.f32" in refused(lambda b: b.op("ld.global.v3.f32", "x", Addr("x_param")))


def test_an_instruction_the_target_lacks() -> None:
    def code(b: Builder) -> None:
        b.op("redux.sync.max.u32", "x", a(b, "y", "u32"), -1)

    assert "needs sm_80" in refused(code, "sm_75")
    assert "target is sm_75" in refused(code, "sm_75")
    assert len(build(code, "sm_80")) == 2


def test_an_instruction_of_one_architecture_alone() -> None:
    assert "needs sm_90a" in refused(lambda b: b.op("setmaxnreg.inc.sync.aligned.u32", 128), "sm_90")


@pytest.mark.parametrize("opcode", ["bra", "bra.uni", "ret", "exit", "bar.sync", "barrier.cluster.wait", "call"])
def test_control_flow_and_barriers_in_a_fragment(opcode: str) -> None:
    assert "belong to the template" in refused(lambda b: b.op(opcode, *([0] if opcode == "bar.sync" else [])))


def test_too_few_and_too_many_operands() -> None:
    assert "takes 3 operands (got 2)" in refused(lambda b: b.op("add.u32", "x", 1))
    assert "takes 3 operands (got 4)" in refused(lambda b: b.op("add.u32", "x", 1, 2, 3))


def test_an_instruction_outside_of_a_fragment() -> None:
    with pytest.raises(IsaError, match=r"kernel demo, \S+\.py:\d+: add\.u32: outside of a fragment"):
        builder().op("add.u32", "x", 1, 2)


# -- operands --------------------------------------------------------------------------------------------------------


def test_a_register_of_the_wrong_type() -> None:
    def code(b: Builder) -> None:
        b.op("add.f32", "x", a(b, "y", "u32"), 1.0)

    assert "operand 2 is .f32 (got %y, a .u32 register)" in refused(code)


def test_a_register_of_the_wrong_size() -> None:
    def code(b: Builder) -> None:
        b.op("add.u64", "x", a(b, "y", "u32"), 1)

    assert "operand 2 is .u64 (got %y, a .u32 register)" in refused(code)


def test_integers_take_either_sign_and_untyped_registers_any() -> None:
    def code(b: Builder) -> None:
        b.op("add.u32", a(b, "x", "s32"), a(b, "y", "b32"), 1)
        b.op("xor.b32", a(b, "z", "b32"), a(b, "f", "f32"), 1)

    assert len(build(code)) == 6


def test_a_number_where_an_address_belongs() -> None:
    assert "operand 2 must be [global address] (got imm 4)" in refused(lambda b: b.op("ld.global.f32", "x", 4))


def test_a_register_where_an_address_belongs() -> None:
    def code(b: Builder) -> None:
        b.op("ld.global.f32", "x", a(b, "p", "u64"))

    assert "must be [global address] (got reg %p); p[0] is the address it holds" in refused(code)


def test_an_address_in_a_float_register() -> None:
    def code(b: Builder) -> None:
        b.op("ld.global.f32", "x", a(b, "p", "f32")[0])

    assert "an address is a 32- or 64-bit integer (got %p, a .f32 register)" in refused(code)


def test_an_immediate_as_destination() -> None:
    assert "operand 1 must be .u32 register (got imm 1)" in refused(lambda b: b.op("add.u32", 1, 2, 3))


def test_a_name_as_source() -> None:
    assert "operand 2 is a source" in refused(lambda b: b.op("add.u32", "x", "y", 3))


def test_a_vector_of_the_wrong_length() -> None:
    def code(b: Builder) -> None:
        b.op("ld.global.v4.f32", b.array("v", "f32", 2), a(b, "p", "u64")[0])

    assert "operand 1 takes 4 elements (got 2)" in refused(code)


def test_a_vector_with_an_element_of_another_type() -> None:
    def code(b: Builder) -> None:
        b.op("st.global.v2.f32", a(b, "p", "u64")[0], (a(b, "x", "f32"), a(b, "y", "u32")))

    assert "operand 2 is .f32 (got %y, a .u32 register)" in refused(code)


def test_braces_that_do_not_fill_a_packed_register() -> None:
    def code(b: Builder) -> None:
        b.op("mov.b64", "wide", (a(b, "x", "b32"), a(b, "y", "b16")))

    assert "operand 2 packs 64 bits in equal parts (got {%x, %y}: 32 + 16 bits)" in refused(code)


def test_braces_that_fill_it_are_taken() -> None:
    def code(b: Builder) -> None:
        wide = b.op("mov.b64", "wide", (a(b, "x", "b32"), a(b, "y", "f32")))
        b.op("mov.b64", (b.reg("low", "u32"), b.reg("high", "b32")), wide)

    assert build(code)[-1] == "    mov.b64 {%low, %high}, %wide;"


def test_a_pair_whose_second_is_no_predicate() -> None:
    def code(b: Builder) -> None:
        b.op("shfl.sync.bfly.b32", Or(b.reg("x", "b32"), b.reg("y", "b32")), a(b, "z", "b32"), 1, 31, -1)

    assert "operand 1 is .pred (got %y, a .b32 register)" in refused(code)


def test_a_guard_that_is_no_predicate() -> None:
    def code(b: Builder) -> None:
        b.op("add.u32", "x", 1, 2, pred=a(b, "y", "u32"))

    assert "a guard is a predicate register (got %y, a .u32 register)" in refused(code)


def test_only_predicates_are_negated() -> None:
    with pytest.raises(TypeError, match=r"~%x: only a predicate"):
        ~Reg("x", "u32")


def test_a_special_register_is_read_by_mov() -> None:
    def code(b: Builder) -> None:
        b.op("add.u32", "x", b.special("tid.x"), 1)

    assert "only mov and cvt read special registers (got %tid.x)" in refused(code)


def test_a_special_register_that_does_not_exist() -> None:
    assert "%lane: no such special register" in refused(lambda b: b.special("lane"))


def test_a_sink_where_a_result_is_needed() -> None:
    assert "operand 1 must be" in refused(lambda b: b.op("add.u32", SINK, 1, 2))


# -- declarations ----------------------------------------------------------------------------------------------------


def test_an_undeclared_register() -> None:
    assert "register %ghost is not declared" in refused(lambda b: b.op("add.u32", "x", Reg("ghost", "u32"), 1))


def test_an_undeclared_guard() -> None:
    assert "a guard is a predicate register (got %ghost, not declared)" in refused(
        lambda b: b.op("add.u32", "x", 1, 2, pred=Reg("ghost", "pred"))
    )


def test_a_register_of_another_kernel_with_a_name_of_ours() -> None:
    def code(b: Builder) -> None:
        a(b, "x", "u32")
        b.op("add.f32", "y", Reg("x", "f32"), 1.0)

    assert "%x is declared .u32 (got a .f32)" in refused(code)


def test_a_register_declared_twice() -> None:
    def code(b: Builder) -> None:
        b.op("mov.u32", "x", 1)
        b.op("mov.u32", "x", 2)

    assert "register %x is already declared; pass the register itself" in refused(code)


def test_an_array_over_a_declared_register() -> None:
    def code(b: Builder) -> None:
        b.reg("acc3", "f32")
        b.array("acc", "f32", 4)

    assert "register %acc3 is already declared" in refused(code)


def test_a_register_over_an_element_of_an_array() -> None:
    def code(b: Builder) -> None:
        b.array("acc", "f32", 4)
        b.reg("acc3", "f32")

    assert "register %acc3 is already declared" in refused(code)


@pytest.mark.parametrize("name", ["tid", "laneid", "clock64"])
def test_a_register_with_the_name_of_a_special_one(name: str) -> None:
    assert "special register of that name" in refused(lambda b: b.reg(name, "u32"))


def test_a_register_that_is_read_and_never_written() -> None:
    def code(b: Builder) -> None:
        b.op("add.u32", "x", b.reg("y", "u32"), 1)

    assert "register %y is read but no instruction writes it" in refused(code)


def test_a_guard_that_nothing_sets() -> None:
    def code(b: Builder) -> None:
        b.op("add.u32", "x", 1, 1, pred=b.reg("p", "pred"))

    assert "register %p is read but no instruction writes it" in refused(code)


def test_an_address_register_counts_as_read() -> None:
    def code(b: Builder) -> None:
        b.op("ld.global.f32", "x", b.reg("p", "u64")[0])

    assert "register %p is read but no instruction writes it" in refused(code)


def test_a_parameter_that_does_not_exist() -> None:
    assert "parameter 'y' is not declared; there are x" in refused(lambda b: b.ld_param("y"))


def test_a_shared_variable_declared_twice() -> None:
    def code(b: Builder) -> None:
        b.shared("tile", 64)
        b.shared("tile", 64)

    assert "shared variable tile is already declared" in refused(code)


@pytest.mark.parametrize("nbytes", [512.0, 0, -1, True])
def test_shared_memory_of_no_bytes(nbytes: Any) -> None:
    said = refused(lambda b: b.shared("tile", nbytes))
    assert f"shared variable tile: must be an int of bytes from 1 on (got {nbytes!r})" in said


def test_shared_memory_at_no_alignment() -> None:
    said = refused(lambda b: b.shared("tile", 64, 12))
    assert "shared variable tile: align must be a power of two, in bytes (got 12)" in said


def test_a_table_declared_twice() -> None:
    def code(b: Builder) -> None:
        b.table("powers", "f32", [1.0, 2.0])
        b.table("powers", "f32", [1.0, 2.0])

    assert "table powers is already declared" in refused(code)


def test_a_table_is_an_address_with_the_kernels_name() -> None:
    b = builder()
    table = b.table("powers", "f32", [1.0, 2.0])
    assert table == Table("demo_powers", "f32", (1.0, 2.0))
    with b.fragment("body") as body:
        b.op("mov.u64", "p", table)
        b.op("ld.global.nc.f32", "x", table[4])
    assert body.lines == ["    mov.u64 %p, demo_powers;", "    ld.global.nc.f32 %x, [demo_powers+4];"]


def test_fragments_neither_nest_nor_repeat() -> None:
    def nested(b: Builder) -> None:
        with b.fragment("inner"):
            pass

    def again(b: Builder) -> None:
        with b.fragment("body"):
            pass

    assert "fragments do not nest" in refused(nested)
    b = builder()
    with b.fragment("body"):
        pass
    with pytest.raises(IsaError, match="fragment 'body' is built twice"):
        again(b)


def test_scalar_parameters_load_as_their_type_and_pointers_as_global_addresses() -> None:
    def code(b: Builder) -> Any:
        return b.ld_param("x")

    assert build(code) == ["    ld.param.u64 %x, [x_param];", "    cvta.to.global.u64 %x, %x;"]


def test_a_number_that_no_f32_holds() -> None:
    assert "add.f32: operand 3: no .f32 holds 1e+39" in str(refused(lambda b: b.op("add.f32", "y", 1.0, 1e39)))


@pytest.mark.parametrize("text", ["two\n    bra $lines;", "square root √"])
def test_a_comment_is_one_line_of_ascii(text: str) -> None:
    assert "note: must be one line of ASCII" in refused(lambda b: b.note(text))
    assert "note: must be one line of ASCII" in refused(lambda b: b.op("mov.u32", "x", 1, note=text))


@pytest.mark.parametrize("name", ["1 bad", "row.x", "x;", "größe", ""])
def test_a_register_has_a_name_that_ptx_knows(name: str) -> None:
    assert "register: a name is letters, digits and _" in refused(lambda b: b.op("mov.u32", name, 1))
    assert "register: a name is letters, digits and _" in refused(lambda b: b.array(name, "u32", 2))


def test_a_float_where_an_integer_belongs() -> None:
    assert "shr.u32: operand 3 is .u32 (got the float 5.0)" in refused(
        lambda b: b.op("shr.u32", "shifted", a(b, "x", "u32"), 5.0)
    )
    assert "add.s32: operand 3 is .s32 (got the float 1.0)" in refused(
        lambda b: b.op("add.s32", "sum", a(b, "x", "s32"), 1.0)
    )


def test_a_literal_that_the_instruction_cannot_have() -> None:
    def copy(b: Builder) -> None:
        b.op("cp.async.cg.shared.global", b.shared("tile", 64)[0], a(b, "x", "u64")[0], 8)

    assert "cp.async.cg.shared.global: operand 3 must be 16 (got 8)" in refused(copy)
    limit = "setmaxnreg.dec.sync.aligned.u32: operand 1 must be a multiple of 8 from 24 to 256 (got 41)"
    assert limit in refused(lambda b: b.op("setmaxnreg.dec.sync.aligned.u32", 41), "sm_90a")


def test_a_body_has_names_of_its_own_and_shares_dynamic_memory() -> None:
    b = builder()
    for name, nbytes in (("one", 64), ("two", 128)):
        with b.body(name):
            with b.fragment("work") as work:
                x = b.op("mov.u32", "x", 1)
                assert b.known("x") == x == Reg(f"{name}_x", "u32")
            values = b.array("value", "f32", 2)
            assert b.known_array("value") is values
            assert b.shared("kept", 16).name == f"{name}_kept"
            assert b.shared("vector", nbytes, dynamic=True).name == "vector"
            b.without("absent")
            b.expose(count=name)
            assert b.bodies[name].keys() == {"work", "x", "value", "absent", "count"}
            assert b.bodies[name]["work"] is work
    assert b.known("x") is None
    assert b.shared_variables["vector"].bytes == 128
    with pytest.raises(IsaError, match="body 'one' opened twice"), b.body("one"):
        pass
    with pytest.raises(IsaError, match="inside another one"), b.body("three"), b.body("four"):
        pass
