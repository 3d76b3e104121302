"""A whole model for hosts in other languages: `program.json`, its kernels, its weights. Owns no launch code.

A host allocates three blocks of memory (weights, from the file; state, zeros; scratch), writes token, position and
length, and then for every token runs the launches in order; each argument is a block with an offset, or a value.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxgen.errors import SpecError
from ptxgen.generator import generate
from ptxgen.models.arena import ALIGN, plan_arena
from ptxgen.models.packing import WeightSource, formats_of, packed
from ptxgen.models.program import Op, Program, Ref
from ptxgen.models.step.decode import step_program
from ptxgen.targets import Target, driver_for_ptx
from ptxgen.targets import target as parse_target
from ptxgen.views.manifest import driver_text, parameter_layout

if TYPE_CHECKING:
    from ptxgen.generator import Ptx

FORMAT = 1
LISTING = "program.json"
WEIGHTS = "weights.bin"


def export_program(
    source: WeightSource, target: str | Target, folder: str | Path, *, kv_dtype: object = "f16", cubin: bool = True,
    rings: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Write the decode step of a model into a new or empty folder; what `program.json` says. With `rings` layers with a
    window keep rings.

    With `cubin` each kernel is assembled, too: raises `AssembleError` where no assembler is installed that makes code
    to run. After an error, of the weights' file or of the disk, too, the folder is as it was.
    """
    where, out = parse_target(target), Path(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpecError(f"{folder}: must be a new or an empty folder")
    overlaps = where.includes_any(("sm_90",))
    program = step_program(
        source.spec, formats_of(source), "decode", kv_dtype=kv_dtype, target=where.name, programmatic=overlaps,
        rings=rings,
    )  # fmt: skip
    kernels = {spec: generate(spec, where) for spec in program.specs()}
    cubins = {spec: _cubin(ptx) for spec, ptx in kernels.items()} if cubin else {}
    with _all_or_nothing(out):
        files = {spec: f"kernels/{number:02d}_{spec.kernel_name}" for number, spec in enumerate(kernels)}
        places, blocks = _places(program)
        memory: dict[str, dict[str, Any]] = {name: {"bytes": nbytes} for name, nbytes in blocks.items()}
        memory["weights"]["file"] = WEIGHTS
        drivers = [driver_for_ptx(ptx.module.version) or 0 for ptx in kernels.values()]
        listing: dict[str, Any] = {
            "format": FORMAT,
            "model": {"family": source.spec.shape.family, "vocab": source.spec.shape.vocab,
                      "max_len": source.spec.shape.max_len},
            "target": where.name,
            "driver": driver_text(max(drivers)),
            "memory": memory,
            "kernels": [_kernel(ptx, files[spec], out, cubins.get(spec)) for spec, ptx in kernels.items()],
            "tensors": {
                name: {"kind": t.kind, "dtype": t.dtype.name, "shape": list(t.shape), "bytes": t.nbytes,
                       "memory": places[name][0], "offset": places[name][1]}
                | ({"format": t.format} if t.format else {})
                for name, t in program.tensors.items()
            },
            "launches": list(_launches(program, kernels, places)),
        }  # fmt: skip
        _write_weights(program, source, places, out / WEIGHTS)
        (out / LISTING).write_text(json.dumps(listing, indent=1) + "\n")
    return listing


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[None]:
    """A new or an empty folder with one for kernels, which what is raised meanwhile leaves as it was."""
    there = folder.exists()
    (folder / "kernels").mkdir(parents=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder / "kernels")
        for name in (WEIGHTS, LISTING):
            (folder / name).unlink(missing_ok=True)
        if not there:
            folder.rmdir()
        raise


def _places(program: Program) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
    """Block and offset of every tensor, and the blocks' sizes."""
    arena = plan_arena(program)
    places = {name: ("scratch", offset) for name, offset in arena.offsets.items()}
    blocks = {"weights": 0, "state": 0, "scratch": arena.nbytes}
    for tensor in program.tensors.values():
        if tensor.kind != "scratch":
            block = "weights" if tensor.kind == "weight" else "state"
            places[tensor.name] = (block, blocks[block])
            blocks[block] += -(-tensor.nbytes // ALIGN) * ALIGN
    return places, blocks


def _cubin(ptx: Ptx) -> bytes:
    from ptxgen.assembler import assemble

    return assemble(ptx.text, ptx.target, name=ptx.entry).cubin


def _kernel(ptx: Ptx, stem: str, out: Path, cubin: bytes | None) -> dict[str, Any]:
    """Write a kernel's files; what a host loads."""
    (out / f"{stem}.ptx").write_text(ptx.text)
    found = {"ptx": f"{stem}.ptx", "entry": ptx.entry, "digest": f"sha256:{ptx.digest}"}
    if cubin is not None:
        found["cubin"] = f"{stem}.cubin"
        (out / found["cubin"]).write_bytes(cubin)
    return found


def _launches(
    program: Program, kernels: Mapping[Any, Ptx], places: Mapping[str, tuple[str, int]]
) -> Iterator[dict[str, Any]]:
    numbers = {spec: number for number, spec in enumerate(kernels)}
    for op in program.ops:
        ptx = kernels[op.spec]
        launch = ptx.launch.at(op.sizes)
        yield {
            "op": op.name, "kernel": numbers[op.spec], "grid": list(launch.grid), "block": list(launch.block),
            "cluster": list(launch.cluster), "shared": launch.shared, "programmatic": launch.programmatic,
            "together": launch.together, "arguments": list(_arguments(op, ptx, places)),
        }  # fmt: skip


def _arguments(op: Op, ptx: Ptx, places: Mapping[str, tuple[str, int]]) -> Iterator[dict[str, Any]]:
    layout, _ = parameter_layout(ptx.module.entries[ptx.entry])
    for param, (_, size, _) in zip(ptx.params, layout, strict=True):
        if param.kind == "scalar":
            yield {"name": param.name, "bytes": size, "value": op.scalars[param.name]}
            continue
        ref: Ref = op.tensors[param.name]
        memory, offset = places[ref.tensor]
        yield {"name": param.name, "tensor": ref.tensor, "memory": memory, "offset": offset + (ref.offset or 0)}


def _write_weights(program: Program, source: WeightSource, places: Mapping[str, tuple[str, int]], file: Path) -> None:
    with file.open("wb") as out:
        for tensor in program.of_kind("weight"):
            out.seek(places[tensor.name][1])
            for piece in packed(tensor, source):
                out.write(piece.tobytes())
        out.truncate(sum(-(-t.nbytes // ALIGN) * ALIGN for t in program.of_kind("weight")))


__all__ = ["export_program"]
