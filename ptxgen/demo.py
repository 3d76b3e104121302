"""`make demo`: the model in `examples/models` goes on with a text, on the GPU or on the CPU executor; then what ran.

Its tokens are compared with those of a NumPy model in float64, the PTX is written to files, and the CPU executor runs
one token once more in check mode.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ptxgen.errors import ExecutionError, PtxgenError
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.complete import Completion

if TYPE_CHECKING:
    from ptxgen.runtime.model.model import Model

MODEL = Path(__file__).resolve().parent.parent / "examples" / "models" / "kjv-q8_0.gguf"
PROMPT = "In the beginning"
TOKENS = 80


def main(folder: Path = Path("demo_out"), device: Device | None = None) -> int:
    """Run the demo; 0 when the tokens are the NumPy model's and check mode finds nothing, 2 without its file."""
    if not MODEL.exists():
        print(f"{MODEL}: is not here; the demo needs a checkout of the project", file=sys.stderr)
        return 2
    completion = Completion(MODEL, PROMPT, TOKENS)
    started = time.perf_counter()
    device = device or open_device()
    model = completion.load(device)
    loaded = time.perf_counter() - started
    for piece in (PROMPT, *completion.run(model)):
        print(piece, end="", flush=True)
    print(f"\n\n{MODEL.name} on {device.name}: loaded in {loaded:.1f} s; {completion.figures}.")
    right = agree(completion)
    show_kernels(model, folder)
    sound = check(completion)
    if device.kind == "cpu":
        print("No GPU here: the CPU executor ran this PTX. `ptxgen doctor` says what it looked for.")
    return 0 if right and sound else 1


def agree(completion: Completion) -> bool:
    """Whether the tokens are those of the same weights in float64; says so."""
    from ptxgen.models.reference import ReferenceModel

    file, written = completion.file, completion.written
    model = ReferenceModel(file.spec, {name: file.values(name) for name in file.tensors})
    wanted = model.generate(completion.tokens, len(written))
    same = sum(ours == theirs for ours, theirs in zip(written, wanted, strict=True))
    print(f"{same} of {len(written)} tokens are those of a NumPy model in float64.\n")
    return written == wanted


def show_kernels(model: Model, folder: Path) -> None:
    """What a token launches, and the PTX of it as files."""
    from ptxgen.files.output import write_files
    from ptxgen.generator import generate

    program = model.program()
    launches = Counter(op.spec for op in program.ops)
    roles = {op.spec: op.role for op in reversed(program.ops)}
    files: dict[str, str | bytes] = {}
    print(f"A token is one graph of {len(program.ops)} launches of {len(launches)} kernels:")
    for number, (spec, count) in enumerate(launches.items()):
        ptx = generate(spec, model.device.target)
        name = f"{number:02}_{ptx.entry}.{ptx.target}"
        files |= {f"{name}.ptx": ptx.text, f"{name}.json": json.dumps(ptx.manifest(), indent=2) + "\n"}
        print(f"  {count:3d} × {name:36} {len(ptx.text.splitlines()):5d} lines of PTX  {roles[spec]}")
    write_files(folder, files)
    print(f"The files are in {folder}, each with its launch contract.\n")


def check(completion: Completion) -> bool:
    """The first token after the prompt in the CPU executor's check mode; says what came of it."""
    started = time.perf_counter()
    model = completion.load(open_device("cpu", mode="check"))
    try:
        *before, last = completion.tokens
        for token in before:
            model.forward_to_token(token)
        token = model.forward_to_token(last)
    except ExecutionError as found:
        print(f"Check mode found:\n{found}")
        return False
    seconds = time.perf_counter() - started
    same = token == completion.written[0]
    print(
        f"The {len(completion.tokens)} tokens of the prompt once more in check mode, {seconds:.1f} s: no race, missing"
    )
    print("barrier, access out of bounds or read of uninitialised memory was found, and the token after them is")
    print("the same." if same else f"another: {token}, not {completion.written[0]}.")
    return same


def program() -> int:
    """`main`, and one sentence for what is missing here."""
    if sys.argv[1:]:
        print(f"demo: takes no arguments (got {' '.join(sys.argv[1:])})", file=sys.stderr)
        return 2
    try:
        found = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has nowhere to go at exit, either
        print("demo: nobody reads its output any more: it ends here", file=sys.stderr)
        return 1
    except (PtxgenError, ImportError) as missing:
        if isinstance(missing, ExecutionError):
            raise
        print(f"demo: {missing}", file=sys.stderr)
        return 2
    return found


if __name__ == "__main__":
    sys.exit(program())
