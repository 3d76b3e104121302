"""Rows: branches, calls, returns, traps, and what else directs execution."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_CANCEL = "clusterlaunchcontrol try_cancel async S=shared::cta? mbarrier::complete_tx::bytes"

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Control Flow Instructions: bra": (Row("bra uni?", "label"),),
    "Control Flow Instructions: brx.idx": (Row("brx idx uni?", "u32:r label"),),
    "Control Flow Instructions: call": (
        Row("call uni?", "label:lrg label:lrg? label:lrg? label:lrg?"),
    ),
    "Control Flow Instructions: ret": (Row("ret uni?", ""),),
    "Control Flow Instructions: exit": (Row("exit", ""),),
    "Miscellaneous Instructions: trap": (Row("trap", ""),),
    "Miscellaneous Instructions: brkpt": (Row("brkpt", ""),),
    "Miscellaneous Instructions: pmevent": (Row("pmevent", "u32:i@0..15"), Row("pmevent mask", "u32:i@0..65535"),),
    "Miscellaneous Instructions: nanosleep": (Row("nanosleep u32", "u32", "6.3"),),
    "Miscellaneous Instructions: setmaxnreg": (
        Row("setmaxnreg inc|dec sync aligned u32", "u32:i@24..256/8", "8.0 sm_90a|sm_100f|sm_110f|sm_120f"),
    ),
    "Parallel Synchronization and Communication Instructions: clusterlaunchcontrol": (
        Row(f"{_CANCEL} b128", "[S] [shared::cta]", "8.6 sm_100"),
        Row(f"{_CANCEL} multicast::cluster::all b128", "[S] [shared::cta]", "8.6 sm_100f|sm_110f|sm_120f"),
        Row("clusterlaunchcontrol query_cancel is_canceled pred b128", "=pred b128:r", "8.6 sm_100"),
        Row("clusterlaunchcontrol query_cancel get_first_ctaid v4 b32 b128", "=b32*4 b128:r", "8.6 sm_100"),
        Row("clusterlaunchcontrol query_cancel get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z b32 b128",
            "=b32 b128:r", "8.6 sm_100"),
    ),
    "Parallel Synchronization and Communication Instructions: griddepcontrol": (
        Row("griddepcontrol launch_dependents|wait", "", "7.8 sm_90"),
    ),
}  # fmt: skip
