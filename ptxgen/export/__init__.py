"""Files for hosts in other languages: PTX, cubin, manifest, C header, Rust module. Owns no launch code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ptxgen.export.stubs import c_header, rust_module
from ptxgen.manifest import FORMAT

if TYPE_CHECKING:
    from ptxgen.generator import Ptx

LISTING = "manifest.json"


def export(kernels: Iterable[Ptx], *, cubin: bool) -> dict[str, str | bytes]:
    """Files by name: for each kernel `<target>/<kernel_type>_<slug>.{ptx,cubin,h,rs}`, and `manifest.json` of them all.

    With `cubin` each text is assembled: raises `AssembleError` when no assembler is installed.
    """
    files: dict[str, str | bytes] = {}
    contracts = []
    for ptx in kernels:
        stem = f"{ptx.target}/{ptx.spec.kernel_name}_{ptx.spec.slug}"
        contract: dict[str, Any] = ptx.manifest()
        contract["files"] = {"ptx": f"{stem}.ptx", "c": f"{stem}.h", "rust": f"{stem}.rs"}
        files[f"{stem}.ptx"] = ptx.text
        files[f"{stem}.h"] = c_header(contract)
        files[f"{stem}.rs"] = rust_module(contract, ptx_file=f"{stem}.ptx".rpartition("/")[2])
        if cubin:
            from ptxgen.assembler import assemble

            contract["files"]["cubin"] = f"{stem}.cubin"
            files[f"{stem}.cubin"] = assemble(ptx.text, ptx.target).cubin
        contracts.append(contract)
    files[LISTING] = json.dumps({"format": FORMAT, "kernels": contracts}, indent=2) + "\n"
    return files
