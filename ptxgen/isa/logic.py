"""Rows: logic and shifts, comparison and selection, data movement between registers."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_ALL = "T=b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"
_BOOL = "and|or|xor"
# Comparisons by the kind of operand: bits, unsigned, signed, float.
_SAME = "eq|ne"
_ORDER = "eq|ne|lt|le|gt|ge"
_UNSIGNED = f"{_ORDER}|lo|ls|hi|hs"
_FLOAT = f"{_ORDER}|equ|neu|ltu|leu|gtu|geu|num|nan"
_KINDS: tuple[tuple[str, str], ...] = (
    (_SAME, "b16|b32|b64"),
    (_UNSIGNED, "u16|u32|u64"),
    (_ORDER, "s16|s32|s64"),
    (_FLOAT, "f64"),
    (f"{_FLOAT} # ftz?", "f32"),
)


def _logic(name: str) -> tuple[Row, ...]:
    return (
        Row(f"{name} T=b16|b32|b64", "=T T T"),
        Row(f"{name} pred", "=pred pred pred"),
    )


def _comparison(operators: str, bool_op: str) -> str:
    """The comparison and, where one is, the Boolean operator; `# ftz?` marks where `.ftz` may follow."""
    compare, _, flush = operators.partition(" # ")
    return " ".join(filter(None, (compare, bool_op, flush)))


def _set() -> tuple[Row, ...]:
    rows = []
    for bool_op, tail in (("", ""), (_BOOL, " pred:n")):
        for operators, sources in _KINDS:
            head = f"set {_comparison(operators, bool_op)}"
            rows.append(Row(f"{head} D=u32|s32|f32 A={sources}", f"=D A A{tail}"))
            rows.append(Row(f"{head} f16 A={sources}", f"=f16 A A{tail}"))
            brain = head.removesuffix(" ftz?")
            rows.append(Row(f"{brain} bf16 A={sources}", f"=bf16 A A{tail}", "7.8 sm_90"))
        half = f"set {_comparison(_FLOAT + ' # ftz?', bool_op)}"
        brain = f"set {_comparison(_FLOAT, bool_op)}"
        rows += [
            Row(f"{half} f16 f16", f"=f16 f16:r f16:r{tail}"),
            Row(f"{half} D=u16|s16|u32|s32 A=f16", f"=D A:r A:r{tail}", "6.5"),
            Row(f"{half} f16x2 f16x2", f"=f16x2 f16x2:r f16x2:r{tail}"),
            Row(f"{half} D=u32|s32 f16x2", f"=D f16x2:r f16x2:r{tail}", "6.5"),
            Row(f"{brain} D=u16|s16|u32|s32|bf16 A=bf16", f"=D A:r A:r{tail}", "7.8 sm_90"),
            Row(f"{brain} D=u32|s32|bf16x2 A=bf16x2", f"=D A:r A:r{tail}", "7.8 sm_90"),
        ]
    return tuple(rows)


def _setp() -> tuple[Row, ...]:
    rows = []
    for bool_op, tail in (("", ""), (_BOOL, " pred:n")):
        for operators, types in _KINDS:
            rows.append(Row(f"setp {_comparison(operators, bool_op)} T={types}", f"=pred:rp_ T T{tail}", loose=True))
        half = f"setp {_comparison(_FLOAT + ' # ftz?', bool_op)}"
        brain = f"setp {_comparison(_FLOAT, bool_op)}"
        rows += [
            Row(f"{half} T=f16", f"=pred T:r T:r{tail}", loose=True),
            Row(f"{half} T=f16x2", f"=pred:rp_ T:r T:r{tail}", loose=True),
            Row(f"{brain} T=bf16", f"=pred T:r T:r{tail}", "7.8 sm_90", loose=True),
            Row(f"{brain} T=bf16x2", f"=pred:rp_ T:r T:r{tail}", "7.8 sm_90", loose=True),
        ]
    return tuple(rows)


SECTIONS: dict[str, tuple[Row, ...]] = {
    "Comparison and Selection Instructions: set": _set(),
    "Comparison and Selection Instructions: setp": _setp(),
    "Comparison and Selection Instructions: selp": (Row(f"selp {_ALL}", "=T T T pred"),),
    "Comparison and Selection Instructions: slct": (
        Row(f"slct {_ALL} s32", "=T T T s32"),
        Row(f"slct ftz? {_ALL} f32", "=T T T f32"),
    ),
    "Logic and Shift Instructions: and": _logic("and"),
    "Logic and Shift Instructions: or": _logic("or"),
    "Logic and Shift Instructions: xor": _logic("xor"),
    "Logic and Shift Instructions: not": (Row("not T=b16|b32|b64", "=T T"), Row("not pred", "=pred pred")),
    "Logic and Shift Instructions: cnot": (Row("cnot T=b16|b32|b64", "=T T"),),
    "Logic and Shift Instructions: lop3": (
        Row("lop3 b32", "=b32 b32 b32 b32 b32:i"),
        Row("lop3 and|or b32", "=b32:p_ b32 b32 b32 b32:i pred", "8.2"),
    ),
    "Logic and Shift Instructions: shf": (Row("shf l|r clamp|wrap b32", "=b32 b32 b32 u32"),),
    "Logic and Shift Instructions: shl": (Row("shl T=b16|b32|b64", "=T T u32"),),
    "Logic and Shift Instructions: shr": (
        Row("shr T=b16|b32|b64|u16|u32|u64|s16|s32|s64", "=T T u32"),
    ),
    "Data Movement and Conversion Instructions: mov": (
        Row("mov T=u16|s16|f32|f64", "=T T"),
        Row("mov T=u32|u64|s32|s64", "=T T:ris"),
        Row("mov b16", "=b16:rv b16:riv"),
        Row("mov T=b32|b64", "=T:rv T:risv"),
        Row("mov b128", "=b128:rv b128:rv", "8.3"),
        Row("mov pred", "=pred pred"),
    ),
    "Data Movement and Conversion Instructions: prmt": (
        Row("prmt b32 f4e|b4e|rc8|ecl|ecr|rc16?", "=b32 b32 b32 b32"),
    ),
}  # fmt: skip
