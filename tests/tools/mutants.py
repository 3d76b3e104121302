"""Small mutations of chosen source files, and which of them the tests do not notice. In a copy of the tree.

python -m tests.tools.mutants [FILE …] [--sample 20] [--seed 1] [--list]     the files of TESTS, each with its own tests
python -m tests.tools.mutants --again EARLIER.txt        those alone that survived in an earlier run with this output
make mutants [MUTANTS="runtime/core/diskcache.py --sample 30"]

A mutation changes one place: a comparison, a number, `and` for `or`, `not`, a lock that is not taken, a part of a list
that is left out, a call that does not happen. Those of EQUIVALENT change nothing that a test could see, for the reason
that stands there, and are left out. Exits 1 where more than 5 % survive.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MOST_SURVIVORS = 0.05
SECONDS = 90  # at least, for the tests of one mutation: what hangs is noticed, and said to hang
SLOWER = 5  # and at least as many times what they take without a mutation, so that a busy machine notices nothing
_CHECKS = ("tests/checks", "tests/isa/test_isa.py")
_BIND = ("tests/runtime/test_arguments.py", "tests/runtime/test_bind.py", "tests/runtime/test_device.py")
_OBJECTS = ("tests/cpu/compile/test_cache.py", "tests/runtime/test_cache_guards.py")
_GOLDENS = "tests/golden/test_golden.py::test_goldens_are_what_is_generated"
_DISK = tuple(f"tests/runtime/test_diskcache{part}.py" for part in ("", "_processes", "_rights"))
TESTS = {
    "ptxgen/models/files/quantise.py": ("tests/models/files/test_quantised.py",),
    "runtime/core/diskcache.py": (*_DISK, "tests/runtime/test_cache_guards.py"),
    "ptxgen/files/user_cache.py": (*_DISK, "tests/lines/test_bytecode.py"),
    "runtime/core/launches/modulecache.py": ("tests/runtime/test_modulecache.py", "tests/runtime/test_cache_guards.py"),
    "runtime/cpu/compile/entry_cache.py": _OBJECTS,
    "runtime/cpu/compile/support_objects.py": _OBJECTS,
    "runtime/core/launches/arguments.py": _BIND,
    "runtime/core/param_block.py": _BIND,
    "runtime/core/scalars.py": _BIND,
    "runtime/core/launches/kernel.py": _BIND,
    "runtime/core/memory/allocation.py": _BIND,
    "runtime/cpu/run/param_space.py": ("tests/runtime/test_arguments.py", "tests/cpu/run/test_launch.py"),
    "runtime/cpu/run/global_memory.py": (
        "tests/cpu/run/test_global_memory.py", "tests/cpu/run/test_memory.py", "tests/runtime/test_cache_guards.py",
        "tests/runtime/test_device.py",
    ),
    "ptxgen/parity.py": ("tests/package/test_parity.py", "tests/runtime/test_cache_guards.py"),
    "ptxgen/models/packing.py": ("tests/models/program/test_packing.py",),
    "ptxgen/models/step/tiled.py": ("tests/runtime/model/test_tiled_sequences.py",),
    "ptxgen/products/wgmma/tokens/attention_output.py": (f"{_GOLDENS}[incremental_attention]",),
    "ptxgen/products/wgmma/mainloop/codes.py": (f"{_GOLDENS}[packed_gemm]",),
    "ptxgen/products/wgmma/epilogue/norms.py": (
        f"{_GOLDENS}[packed_gemm]", "tests/products/wgmma/test_packed_norms.py",
    ),
    "ptxgen/products/wgmma/tokens/scaled_packing.py": (f"{_GOLDENS}[pack_tokens]",),
    "ptxgen/weights/blocks_of_32.py": (
        "tests/weights/test_formats.py", f"{_GOLDENS}[gemv]", f"{_GOLDENS}[digit_gemm]", f"{_GOLDENS}[packed_gemm]",
    ),
    "runtime/model/timing.py": ("tests/runtime/model/test_profile.py",),
    "ptxgen/checks/__init__.py": _CHECKS,
    "ptxgen/checks/access.py": _CHECKS,
    "ptxgen/checks/bounds.py": _CHECKS,
    "ptxgen/checks/comparisons.py": _CHECKS,
    "ptxgen/checks/largest.py": _CHECKS,
    "ptxgen/checks/lint.py": _CHECKS,
    "ptxgen/checks/loops.py": (*_CHECKS, "tests/builder/test_template_errors.py"),
    "ptxgen/checks/names.py": _CHECKS,
    "ptxgen/checks/operand.py": _CHECKS,
}  # fmt: skip
# file: (a part of the line, what is mutated, why nothing that can be observed changes)
_TYPE = "what a type is made of is not looked at when it runs"
_SIZE = "how much a cache keeps changes no result"
_QUICK = "a quick look that may say yes too often: what it lets through is looked at closely"
_ROUNDS = "how many rounds a loop is followed is a choice: more of them know no less"
_AHEAD = "done ahead, so that no kernel waits for it; else it is done when it is needed"
_MORE_MEMORY = "more memory than is needed is taken, and nothing else"
EQUIVALENT: dict[str, tuple[tuple[str, str, str], ...]] = {
    "runtime/core/diskcache.py": (
        ("self._written = 0", "0 → 1", "the first write looks at the directory anyway, and sets it"),
    ),
    "ptxgen/files/user_cache.py": (
        ("O_NOFOLLOW", "0 → 1", "where the tests run the operating system has O_NOFOLLOW"),
        ("os.urandom(6)", "6 → 7", "the random part of a temporary's name may have any length"),
    ),
    "ptxgen/checks/__init__.py": (
        ("= [(line, what, None) for", "None → nothing", "a finding is of no function unless one is given"),
        ("ChainMap[str, Variable]", "str, → nothing", _TYPE), ("ChainMap[str, Variable]", "Variable → nothing", _TYPE),
        ("form.ptx > self.module.version", "> → >=", "a version that is enough is found to be so once more"),
    ),
    "ptxgen/checks/access.py": (
        ("len(item.operands) > 2", "> → >=", "every cp.async with an address has three operands or more"),
        ("branch >= first and labels", ">= → >", "a branch writes no register"),
        ("branch >= first and labels", "<= → <", "a label reads no register"),
        ("isinstance(target, Symbol) and target", "and → or", "a branch forward leads behind what was read before it"),
    ),
    "ptxgen/checks/names.py": (
        ("if len(here) < len(labels)", "< → <=", "labels that are all different are found to be so once more"),
    ),
    "ptxgen/checks/operand.py": (
        ("maxsize=1 << 14", "1 → 2", _SIZE), ("maxsize=1 << 14", "14 → 15", _SIZE),
    ),
    "ptxgen/checks/loops.py": (
        ('("bra", "bra.uni")', '"bra", → nothing', "what is left is one word, of which bra is a part"),
        ("labels.get(target.name, at) < at", "< → <=", "a branch stands at no label's place"),
    ),
    "ptxgen/checks/lint.py": (
        ("return bool(marked) and", "and → or", _QUICK), ("value >= 0 else ANY", ">= → >", _QUICK),
        ("value >= 0 else ANY", "0 → 1", _QUICK),
    ),
    "ptxgen/checks/largest.py": (
        ("b[0] >> min(b[1], 32)", "32 → 33", "a value of 32 bits has none left after either shift"),
        ("b[0] << min(b[1], 32)", "32 → 33", "either is above the largest value of 32 bits, and counts as that"),
        ("min(b[2], 32)) - 1)", "32 → 33", "the source's own bound is no larger than 32 ones"),
    ),
    "ptxgen/checks/bounds.py": (
        ("_WIDEN_AFTER = 3", "3 → 4", _ROUNDS), ("_NARROWINGS = 2", "2 → 3", _ROUNDS),
        ("visits = [0]", "0 → 1", _ROUNDS), ("visits[number] += 1", "1 → 2", _ROUNDS),
        ("visits[follower] >= _WIDEN", ">= → >", _ROUNDS),
        ('in ("bra", "brx"', '"brx", → nothing', "what stands behind brx has a label, or is never reached"),
        ("isinstance(target, Symbol) and target", "and → or", "a branch names a label: other texts come not so far"),
        (".largest > entry.bounds[n].largest", "> → >=", "what is widened in vain is narrowed again"),
        ("if largest <= ANY:", "<= → <", "both ways give the same for the largest of all values"),
    ),
    "ptxgen/models/packing.py": (("SLICE = 16 << 20", "16 → 17", _SIZE), ("SLICE = 16 << 20", "20 → 21", _SIZE)),
    "ptxgen/products/wgmma/mainloop/codes.py": (
        ("shape.groups > MOST_GROUPS", "> → >=", "when a lane reads its words changes how many registers it takes"),
    ),
    "ptxgen/products/wgmma/epilogue/norms.py": (
        ("together = max(1, flight", "1 → 2", "how many tokens' loads are on their way changes no sum"),
    ),
    "ptxgen/weights/blocks_of_32.py": (
        ("3, 5)]).reshape(-1)", "1 → 2", "NumPy takes any negative extent for the one it finds"),
        ("self.tiles(cols), -1)", "1 → 2", "NumPy takes any negative extent for the one it finds"),
        ("rows, cols) << 4)", "4 → 5", "packbits asks only whether a number is zero"),
        ("-(-self.chunks // 4)", "4 → 5", "of 2, 4 and 8 chunks there are as many words either way"),
    ),
    "runtime/model/timing.py": (
        ('found, layer, part = [], -1, ""', "1 → 2", "an op outside of the layers has a part of its own"),
    ),
    "ptxgen/parity.py": (
        ("or 1.0", "1.0 → 10.0", "of a buffer of zeros the error is the largest difference, and held to the limit"),
    ),
    "runtime/cpu/run/global_memory.py": (
        ("_GUARD = 256", "256 → 257", _MORE_MEMORY), ("nbytes + 2 * _GUARD", "2 → 3", _MORE_MEMORY),
        ("len(one[0])", "0 → 1", "the columns of a table are of one length"),
        ("self.shadow is not None and self._fields", "and → or", "a shadow has its fields, and they have a shadow"),
    ),
    "runtime/cpu/compile/support_objects.py": (
        ('key_of(["support"', '"support", → nothing', "no other key has the same parts behind it"),
        ('import_module("ptxgen.runtime.core', 'import_module("ptxgen.runtime.core.launches.module → pass', _AHEAD),
        ("registry.family_of", 'registry.family_of(("ret",)) → pass', _AHEAD),
        ("    sources_digest()", "sources_digest() → pass", _AHEAD),
        ("@functools.lru_cache(maxsize=1)", "1 → 2", _SIZE), ("@functools.lru_cache(maxsize=16)", "16 → 17", _SIZE),
    ),
    "runtime/cpu/compile/entry_cache.py": (
        ("VersionWarning, stacklevel=2", "2 → 3", "either is a line of the executor's own"),
    ),
    "runtime/core/param_block.py": (
        ("-(-size // 8), 1) + 15", "1 → 2", _MORE_MEMORY), ("-(-size // 8), 1) + 15", "15 → 16", _MORE_MEMORY),
        ("self._pointers = (", "1 → 2", _MORE_MEMORY),
    ),
    "runtime/core/launches/arguments.py": (
        ("for b in found[:1]", "1 → 2", "a parameter keeps one buffer: an array of pointers stands for those it lists"),
    ),
}  # fmt: skip
_OTHER = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


class Mutation(NamedTuple):
    """One change: the bytes from `begin` to `end` become others."""

    line: int
    what: str
    begin: int
    end: int
    text: str


def mutations(source: str) -> list[Mutation]:
    """Every mutation of a source, in the order of the text."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    data = source.encode()

    def place(node: ast.AST, end: bool = False) -> int:
        line, column = ("end_lineno", "end_col_offset") if end else ("lineno", "col_offset")
        return starts[getattr(node, line) - 1] + int(getattr(node, column))

    def changed(node: ast.AST, text: str, begin: int, end: int) -> Mutation:
        was = data[begin:end].decode().strip().splitlines()[0][:50]
        return Mutation(getattr(node, "lineno", 0), f"{was} → {text.strip()[:50] or 'nothing'}", begin, end, text)

    def of(node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            word = _OTHER[type(node.ops[0])]
            yield changed(node, f" {word} ", place(node.left, True), place(node.comparators[0]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and str(node.value)[0] not in "TF":
            number = node.value + 1 if isinstance(node.value, int) else node.value * 10 or 1.0
            yield changed(node, repr(number), place(node), place(node, True))
        elif isinstance(node, ast.BoolOp):
            word = "or" if isinstance(node.op, ast.And) else "and"
            yield changed(node, f" {word} ", place(node.values[0], True), place(node.values[1]))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield changed(node, "", place(node), place(node.operand))
        elif isinstance(node, ast.With) and "lock" in ast.unparse(node.items[0].context_expr).lower():
            yield changed(node, "True", place(node.items[0].context_expr), place(node.items[0].context_expr, True))
        elif isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
            for here, after in zip(node.elts, [*node.elts[1:], None], strict=True):
                stop = place(after) if after is not None else place(here, True)
                yield changed(here, "", place(here), stop)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield changed(node, "pass", place(node), place(node, True))

    types = list(_annotations(tree, place))
    every = (one for node in ast.walk(tree) for one in of(node))
    found = [one for one in every if not any(begin <= one.begin < end for begin, end in types)]
    usable = []
    for one in sorted(found, key=lambda mutation: (mutation.begin, mutation.end)):
        text = applied(source, one)
        try:
            compile(text, "<mutant>", "exec")
        except SyntaxError:
            continue
        usable.append(one)
    return usable


def _annotations(tree: ast.AST, place: Callable[..., int]) -> Iterator[tuple[int, int]]:
    """Where types stand, which are not run: begin and end, in bytes."""
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            annotation = node.value  # a name for a type
        if isinstance(annotation, ast.expr):
            yield place(annotation), place(annotation, True)


def applied(source: str, one: Mutation) -> str:
    """The source with one mutation; a lock is replaced by a condition that always holds."""
    data = source.encode()
    text = (data[: one.begin] + one.text.encode() + data[one.end :]).decode()
    if one.text == "True":
        begin = data.rindex(b"with", 0, one.begin)
        text = (data[:begin] + b"if True" + data[one.end :]).decode()
    return text


def equivalent(source: str, file: str) -> dict[Mutation, str]:
    """The mutations of a file that change nothing observable, and why."""
    lines = source.splitlines()
    found = {}
    for one in mutations(source):
        for part, what, reason in EQUIVALENT.get(file, ()):
            if part in lines[one.line - 1] and one.what == what:
                found[one] = reason
    return found


def chosen_of(source: str, file: str, sample: int | None, seed: int) -> list[Mutation]:
    """All mutations of a source, or as many as `sample` says, drawn with `seed`; in the order of the text."""
    known = equivalent(source, file)
    every = [one for one in mutations(source) if one not in known]
    if sample is None or sample >= len(every):
        return every
    return sorted(random.Random(seed).sample(every, sample), key=lambda one: (one.begin, one.end))


def again(source: str, file: str, earlier: str) -> list[Mutation]:
    """The mutations that survived in an earlier run, by line and change."""
    survived = {line.removesuffix(": SURVIVES") for line in earlier.splitlines() if line.endswith(": SURVIVES")}
    return [one for one in chosen_of(source, file, None, 0) if said(file, one) in survived]


def said(file: str, one: Mutation) -> str:
    """How a mutation is named in the output."""
    return f"{file}:{one.line}: {one.what}"


def survivors(
    copy: Path, file: str, tests: tuple[str, ...], chosen: list[Mutation], seconds: float = SECONDS
) -> list[str]:
    """The mutations that the tests did not notice, which are given `seconds` for each."""
    path = copy / file
    source = path.read_text(encoding="utf-8")
    unnoticed: list[str] = []
    for one in chosen:
        path.write_text(applied(source, one), encoding="utf-8")
        passed = passes(copy, tests, seconds)
        print(f"{said(file, one)}: {_SAYS[passed]}", flush=True)
        if passed:
            unnoticed.append(said(file, one))
    path.write_text(source, encoding="utf-8")
    return unnoticed


_SAYS = {True: "SURVIVES", False: "noticed", None: "noticed, as the tests do not end"}


def passes(copy: Path, tests: tuple[str, ...], seconds: float = SECONDS) -> bool | None:
    """Whether the tests pass in the copy; None where they do not end in that time."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0


def main() -> int:
    """Try them; 1 where too many survive."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", default=list(TESTS), help="files of TESTS (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutations of each file, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="what survived in the run whose output this is")
    parser.add_argument("--list", action="store_true", help="say which mutations there are, and run nothing")
    given = parser.parse_args()
    if unknown := [file for file in given.files if file not in TESTS]:
        parser.error(f"no tests are named for {', '.join(unknown)}; TESTS has {', '.join(TESTS)}")
    chosen: dict[str, list[Mutation]] = {}
    for file in given.files:
        source = (ROOT / file).read_text(encoding="utf-8")
        chosen[file] = chosen_of(source, file, given.sample, given.seed)
        if given.again:
            chosen[file] = again(source, file, given.again.read_text(encoding="utf-8"))
    if given.list:
        for file, listed in chosen.items():
            print(*(said(file, one) for one in listed), sep="\n")
        return 0
    tried = sum(map(len, chosen.values()))
    unnoticed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
        for file, listed in chosen.items():
            began = time.monotonic()
            if listed and not passes(copy, TESTS[file], 10 * SECONDS):
                parser.error(f"the tests of {file} fail without any mutation")
            seconds = max(SECONDS, SLOWER * (time.monotonic() - began))
            unnoticed += survivors(copy, file, TESTS[file], listed, seconds)
    print(f"{len(unnoticed)} of {tried} mutations survive", *unnoticed, sep="\n  ")
    return int(len(unnoticed) > MOST_SURVIVORS * tried)


if __name__ == "__main__":
    raise SystemExit(main())
