"""Functions of CUDA's device runtime in PTX: `malloc` and `free` over a heap in the module's global memory.

A block is a power of two, headed by its class; freed blocks of a class are a list, popped and pushed by their offsets
with a count beside (so that a block that comes back meanwhile is noticed). What is not there any more gives 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptxgen.nodes import Function, Module
from ptxgen.parser import parse

HEAP_BYTES = 8 << 20  # CUDA's default of cudaLimitMallocHeapSize
_HEAP, _LISTS, _TOP = "$heap", "$heap$lists", "$heap$top"

_TEXT = f"""
.version 8.0
.target sm_80
.address_size 64
.global .align 16 .b8 {_HEAP}[{HEAP_BYTES}];
.global .align 8 .b64 {_LISTS}[64];
.global .align 8 .b64 {_TOP};
.func (.param .b64 result) malloc (.param .b64 size)
{{
  .reg .pred %p<6>; .reg .b32 %r<5>; .reg .b64 %n, %bytes, %list, %old, %new, %block, %next, %seen, %end, %base;
  ld.param.b64 %n, [size];
  setp.eq.u64 %p1, %n, 0;
  setp.gt.u64 %p2, %n, {HEAP_BYTES};
  or.pred %p1, %p1, %p2;
  @%p1 bra NONE;
  add.u64 %n, %n, 15;
  clz.b64 %r1, %n;
  sub.u32 %r1, 64, %r1;
  max.u32 %r1, %r1, 5;
  mov.u64 %bytes, 1;
  shl.b64 %bytes, %bytes, %r1;
  mov.u64 %base, {_HEAP};
  mov.u64 %list, {_LISTS};
  mad.wide.u32 %list, %r1, 8, %list;
  ld.relaxed.gpu.global.b64 %old, [%list];
POP:
  and.b64 %block, %old, 0xffffffff;
  setp.eq.u64 %p3, %block, 0;
  @%p3 bra GROW;
  add.u64 %block, %base, %block;
  ld.relaxed.gpu.global.b64 %next, [%block];
  shr.u64 %new, %old, 32;
  add.u64 %new, %new, 1;
  shl.b64 %new, %new, 32;
  and.b64 %next, %next, 0xffffffff;
  or.b64 %new, %new, %next;
  atom.acq_rel.gpu.global.cas.b64 %seen, [%list], %old, %new;
  setp.eq.u64 %p4, %seen, %old;
  mov.u64 %old, %seen;
  @!%p4 bra POP;
  bra FOUND;
GROW:
  atom.relaxed.gpu.global.add.u64 %block, [{_TOP}], %bytes;
  add.u64 %end, %block, %bytes;
  add.u64 %end, %end, 16;
  setp.gt.u64 %p5, %end, {HEAP_BYTES};
  @%p5 bra NONE;
  add.u64 %block, %block, 16;
  add.u64 %block, %base, %block;
FOUND:
  cvt.u64.u32 %n, %r1;
  st.relaxed.gpu.global.b64 [%block+-16], %n;
  st.param.b64 [result], %block;
  ret;
NONE:
  mov.u64 %block, 0;
  st.param.b64 [result], %block;
  ret;
}}
.func free (.param .b64 pointer)
{{
  .reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %block, %base, %class, %list, %old, %new, %offset, %seen;
  ld.param.b64 %block, [pointer];
  setp.eq.u64 %p1, %block, 0;
  @%p1 bra OUT;
  mov.u64 %base, {_HEAP};
  ld.relaxed.gpu.global.b64 %class, [%block+-16];
  mov.u64 %list, {_LISTS};
  shl.b64 %class, %class, 3;
  add.u64 %list, %list, %class;
  sub.u64 %offset, %block, %base;
  ld.relaxed.gpu.global.b64 %old, [%list];
PUSH:
  st.relaxed.gpu.global.b64 [%block], %old;
  shr.u64 %new, %old, 32;
  add.u64 %new, %new, 1;
  shl.b64 %new, %new, 32;
  or.b64 %new, %new, %offset;
  atom.acq_rel.gpu.global.cas.b64 %seen, [%list], %old, %new;
  setp.eq.u64 %p2, %seen, %old;
  mov.u64 %old, %seen;
  @!%p2 bra PUSH;
OUT:
  ret;
}}
"""


def with_runtime(module: Module, wanted: Sequence[str]) -> Module:
    """The module with bodies for those of `malloc` and `free` that it declares without."""
    ours = parse(_TEXT, "<device runtime>")
    line = module.functions[wanted[0]].line
    added = [item for item in ours.items if not isinstance(item, Function) or item.name in wanted]
    kept = [item for item in module.items if not isinstance(item, Function) or item.name not in wanted]
    return replace(module, items=(*(replace(item, line=line) for item in added), *kept))
