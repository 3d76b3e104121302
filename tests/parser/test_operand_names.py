"""Register names made of hexadecimal letters are names, not constant expressions with `%` and `|` operators."""

import pytest

from ptxgen.nodes import Group, Immediate, Pair, Register
from ptxgen.parser.operand import parse_operand


@pytest.mark.parametrize(("text", "node"), [
    ("%d0|%d1", Pair(Register("%d0"), Register("%d1"))), ("%a|%p", Pair(Register("%a"), Register("%p"))),
    ("(%a1)", Group((Register("%a1"),))), ("()", Group(())), ("7 % 4", Immediate("3")), ("1|4", Immediate("5")),
])  # fmt: skip
def test_names_and_expressions_are_told_apart(text, node):
    assert parse_operand(text) == node
