"""Every row of the instruction table is emitted as valid LLVM IR, or refused by name, line and text."""

import re

import pytest

from ptxgen import isa
from ptxgen.errors import IsaError
from ptxgen.parser import parse
from ptxgen.runtime.cpu.compile.entry import emit_entry, module_text
from ptxgen.runtime.cpu.native import host
from tests.support.isa_samples import module, samples, statement

# What the executor does not run at all; anything else that is refused needs a reason here.
ABSENT = {"clusterlaunchcontrol", "multimem", "wmma", "tcgen05"}
FORMS_ABSENT = (
    r"cvt\.rs", r"cp_mask", r"(ld|st)matrix.*b8", r"st\.bulk", r"setp.*f16x2",
    r"(st|red)\.async.*release", r"async\.bulk\.tensor.*(im2col|tile::|cta_group)", r"cvt.*(e2m|e3m|ue8m0)",
    r"mma.*mxf", r"mma.*m8n8k4.*f16", r"interleave_layout",
)  # fmt: skip


def outcome(text: str) -> tuple[str, str]:
    """(the refusal, or nothing if one statement compiles; what a refusal must look like)."""
    source, (line,) = module([text], (9, 0), "sm_90a")
    form = rf"s.ptx:{line}: (instruction|operand|type) .*: {re.escape(text)}$"
    try:
        _, warp = emit_entry(parse(source, "s.ptx"), "kernel", False, host.this_host())
    except IsaError as error:
        return str(error), form
    host._llvm().parse_assembly(module_text([warp])).verify()
    return "", form


@pytest.mark.parametrize("name", isa.opcodes())
def test_every_row_of(name):
    for row in isa.rows(name):
        opcode = samples(row)[0]
        refused, form = outcome(statement(isa.lookup(opcode)))
        if refused:
            assert name in ABSENT or any(re.search(p, opcode) for p in FORMS_ABSENT), refused
            assert re.match(form, refused), refused
        else:
            assert name not in ABSENT, f"{opcode} is supported now: take it off the list"
