"""Files for hosts in other languages: PTX, cubin, manifest, C header, Rust module. Owns no launch code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ptxgen.export.stubs import c_header, rust_module, shared_c_header
from ptxgen.views.manifest import FORMAT

if TYPE_CHECKING:
    from ptxgen.generator import Ptx

LISTING = "manifest.json"
SHARED_HEADER = "ptxgen.h"


@dataclass(frozen=True)
class Part:
    """A kernel of an export: its files and the names in its stubs begin with `name`; `facts` join its contract."""

    ptx: Ptx
    name: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def export(kernels: Iterable[Ptx | Part], *, cubin: bool, **facts: Any) -> dict[str, str | bytes]:
    """Files by name: for each kernel `<target>/<name>.{ptx,cubin,h,rs}`, the header that all of these include, and
    `manifest.json` of them all, with `facts`. A kernel without a name is `<kernel_type>_<slug>`.

    With `cubin` each text is assembled: raises `AssembleError` where no assembler is installed that makes code to run.
    """
    files: dict[str, str | bytes] = {SHARED_HEADER: shared_c_header()}
    contracts = []
    for each in kernels:
        part = each if isinstance(each, Part) else Part(each)
        ptx, named = part.ptx, {"name": part.name} if part.name else {}
        stem = f"{ptx.target}/{part.name or f'{ptx.spec.kernel_name}_{ptx.spec.slug}'}"
        contract: dict[str, Any] = {**named, **part.facts, **ptx.manifest()}
        contract["files"] = {"ptx": f"{stem}.ptx", "c": f"{stem}.h", "rust": f"{stem}.rs"}
        files[f"{stem}.ptx"] = ptx.text
        files[f"{stem}.h"] = c_header(contract)
        files[f"{stem}.rs"] = rust_module(contract, ptx_file=f"{stem}.ptx".rpartition("/")[2])
        if cubin:
            from ptxgen.assembler import assemble

            contract["files"]["cubin"] = f"{stem}.cubin"
            files[f"{stem}.cubin"] = assemble(ptx.text, ptx.target, name=ptx.entry).cubin
        contracts.append(contract)
    files[LISTING] = json.dumps({"format": FORMAT, **facts, "kernels": contracts}, indent=2) + "\n"
    return files
