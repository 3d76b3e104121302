"""`ptxgen tune`: measures how decode attention and products are best divided on a GPU, and writes the tuning table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxgen.cli._given import Command, FloatRange, IntRange, a_format, a_path, a_target
from ptxgen.cli._model import check_kv_dtype
from ptxgen.cli._output import emit_json, json_option, progress, say, table
from ptxgen.errors import CudaError, SpecError

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device
    from ptxgen.targets import Target
    from ptxgen.tuning_jobs.attention import Found, Job
    from ptxgen.tuning_jobs.products import FoundProduct, ProductJob

_CAPACITIES = (512, 2048, 8192, 32768, 131072)
_BATCHES = (1, 8, 32)


@click.command(name="tune", cls=Command)
@click.option("--heads", multiple=True, metavar="Q/KV/DIM", help="Query heads, KV heads, head_dim; repeatable.")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="CONFIG.JSON",
    callback=a_path,
    help="A model's config.json; repeatable.",
)
@click.option(
    "--product", "products", multiple=True, metavar="NxK/FORMAT", help="A matrix [n, k] of weights; repeatable."
)
@click.option("--weights", "formats", multiple=True, callback=a_format,
              help="Formats: the products of each --config, too; repeatable.")  # fmt: skip
@click.option("--kv-dtype", "dtypes", multiple=True, help="Of the cache's elements; repeatable [default: model's, f16]")
@click.option(
    "--capacity",
    "capacities",
    multiple=True,
    type=IntRange(16, 1 << 24),
    help=f"Positions of a cache; repeatable [default: {', '.join(map(str, _CAPACITIES))}]",
)
@click.option(
    "--batch",
    "batches",
    multiple=True,
    type=IntRange(1, 65535),
    help=f"Sequences; 1 is the kernel for one; repeatable [default: {', '.join(map(str, _BATCHES))}]",
)
@click.option(
    "--fill",
    "fills",
    multiple=True,
    type=FloatRange(0, 1, min_open=True),
    help="How full the cache is, as a share; several: their mean counts [default: 1]",
)
@click.option("-o", "--output", metavar="FILE", help="The table to write [default: PTXGEN_TUNING, else your own]")
@click.option("--shipped", is_flag=True, help="Write the table that ptxgen ships (in a checkout).")
@click.option("--device", default=None, help="cuda or cuda:N  [default: cuda]")
@click.option("--target", default=None, callback=a_target, help="Architecture to tune for [default: the GPU's own]")
@click.option("--gain", type=FloatRange(0, 50), default=2.0, help="Write rows for no less, in %  [default: 2]")
@click.option("--seconds", type=FloatRange(0, min_open=True), default=None, help="Begin no class after so long.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; needs no GPU when --target is given.")
@json_option
def command(
    heads: Sequence[str], configs: Sequence[str], products: Sequence[str], formats: Sequence[str],
    dtypes: Sequence[str], capacities: Sequence[int], batches: Sequence[int], fills: Sequence[float],
    output: str | None, shipped: bool, device: str | None, target: str | None, gain: float, seconds: float | None,
    dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    """Measure decode attention and products on this GPU and write a tuning table.

    Each class of shapes (heads, element type, capacity, one sequence or batches) is measured with several ways to
    divide the work, as nodes of a graph, with enough caches in rotation to defeat the L2. A class gets a row where one
    of them is at least 2 % faster than what is in force.

    Products are those with one token on tensor cores: --product names a matrix, --weights with --config all of a model.

    The table is your own: it is read where PTXGEN_TUNING names it, and its rows stand before the shipped ones.

    \b
    ptxgen tune --config config.json
    ptxgen tune --heads 32/8/128 --kv-dtype f16 --kv-dtype e4m3 --capacity 8192 -o tuning.json
    ptxgen tune --product 4096x14336/q4_k --product 4096x4096/q6_k -o tuning.json
    export PTXGEN_TUNING=tuning.json
    """
    from ptxgen.targets import target as parse_target

    if shipped and output:
        raise click.UsageError("tune: -o or --shipped, not both")
    if not heads and not configs and not products:
        raise click.UsageError("tune: --heads, --config or --product: is needed, for example --heads 32/8/128")
    for kind in dtypes:
        check_kv_dtype(kind)
    found: list[Job | ProductJob] = []
    if heads or configs:
        found += dict.fromkeys(_jobs(heads, configs, dtypes, capacities, batches, fills))
    found += dict.fromkeys(_products(products, configs, formats))
    if target:
        _runs_on(found, parse_target(target))
    if dry_run and target:
        return _show(found, parse_target(target), as_json)
    opened = _open(device)
    where = parse_target(target) if target else opened.target
    _runs_on(found, where)
    if dry_run:
        return _show(found, where, as_json)
    path = _path(output, shipped)
    _check(path)
    results = []
    for one in _measure(found, opened, where, seconds, gain / 100):
        results.append(one)
        if one.better:
            _write(path, one, where)
    return _report(results, len(found), path, as_json)


def _jobs(
    heads: Sequence[str], configs: Sequence[str], dtypes: Sequence[str], capacities: Sequence[int],
    batches: Sequence[int], fills: Sequence[float],
) -> list[Job]:  # fmt: skip
    """Every class that the options name; one sequence first, then batches together."""
    from ptxgen.kernel import spec_error, supports
    from ptxgen.targets import target as parse_target
    from ptxgen.tuning_jobs.attention import Job

    shapes = [(*_heads(word), tuple(dtypes) or ("f16",), 1 << 24) for word in heads]
    shapes += [_model(path, dtypes) for path in configs]
    sizes = tuple(sorted(set(batches or _BATCHES)))
    groups: list[tuple[int, ...]] = [()] if 1 in sizes else []
    groups += [tuple(n for n in sizes if n > 1)] if sizes[-1] > 1 else []
    out = []
    for n_heads, n_kv_heads, head_dim, kinds, longest in shapes:
        wanted = sorted({min(c, longest) for c in capacities or _CAPACITIES})
        for kind in kinds:
            for capacity in wanted:
                for group in groups:
                    job = Job(n_heads, n_kv_heads, head_dim, kind, capacity, group, tuple(fills) or (1.0,))
                    support = supports(job.spec, parse_target("sm_90"))
                    if not support:
                        raise spec_error("tune", support.reasons)
                    out.append(job)
    return out


def _products(words: Sequence[str], configs: Sequence[str], formats: Sequence[str]) -> Iterator[ProductJob]:
    """Every matrix that the options name, as far as its format is for tensor cores."""
    from ptxgen.kernel import spec_error, supports
    from ptxgen.models.spec import load_spec
    from ptxgen.targets import target as parse_target
    from ptxgen.tuning_jobs.products import ProductJob

    jobs = [_product(word) for word in words]
    for path in configs if formats else ():
        model = load_spec(path)
        shape, rows = model.shape, model.products()
        stacked = sum(rows[name][0] for name in ("q_proj", "k_proj", "v_proj"))
        sizes = [(stacked, model.dim, False), (*rows["o_proj"], False), (model.hidden, model.dim, True)]
        sizes += [(*rows["down_proj"], False), (shape.vocab, model.dim, False)]
        jobs += [
            _legal(f"--weights {kind}: {path}: {n} x {k}", ProductJob(n, k, kind, gated))
            for kind in formats
            for n, k, gated in sizes
        ]
    for job in jobs:
        support = supports(job.spec, parse_target("sm_90"))
        if not support:
            raise spec_error("tune", support.reasons)
        if job.runs(parse_target("sm_90")) is None:
            raise SpecError(f"--product: has no tensor cores, and so nothing to choose (got {job.label()})")
        yield job


def _runs_on(jobs: Sequence[Job | ProductJob], where: Target) -> None:
    """Refuse an architecture on which a class cannot be had, or has nothing to choose."""
    from ptxgen.kernel import supports
    from ptxgen.tuning_jobs.products import ProductJob

    for job in jobs:
        if support := supports(job.spec, where):
            if isinstance(job, ProductJob) and job.runs(where) is None:
                raise SpecError(f"--target: {where} has no tensor cores for {job.label()}, and so nothing to choose")
        else:
            raise SpecError("; ".join(f"--{reason}" for reason in support.reasons))


def _product(word: str) -> ProductJob:
    from ptxgen.tuning_jobs.products import ProductJob

    sizes, _, kind = word.partition("/")
    n, _, k = sizes.partition("x")
    if not (n.isdigit() and k.isdigit() and kind):
        raise SpecError(f"--product: must be NxK/FORMAT, as 4096x14336/q4_k (got {word!r})")
    return _legal(f"--product {word}", ProductJob(int(n), int(k), kind))


def _legal(label: str, job: ProductJob) -> ProductJob:
    """The job, of a matrix that there can be in its format."""
    try:
        _ = job.spec
    except SpecError as wrong:
        raise SpecError(f"{label}: {str(wrong).replace('Gemv.', '')}") from None
    return job


def _heads(word: str) -> tuple[int, int, int]:
    parts = word.split("/")
    if len(parts) != 3 or not all(p.isdigit() and int(p) for p in parts):
        raise SpecError(f"--heads: must be Q/KV/DIM, as 32/8/128 (got {word!r})")
    return int(parts[0]), int(parts[1]), int(parts[2])


def _model(path: str, dtypes: Sequence[str]) -> tuple[int, int, int, tuple[str, ...], int]:
    from ptxgen.models import load_config

    shape = load_config(path)
    return shape.n_heads, shape.n_kv_heads, shape.head_dim, tuple(dtypes) or (shape.dtype,), shape.max_len


def _open(name: str | None) -> Device:
    """The GPU. The CPU executor's times say nothing."""
    from ptxgen.runtime import open_device
    from ptxgen.runtime.opening import is_device_name

    if name is not None and (name == "cpu" or not is_device_name(name)):
        raise SpecError(f"--device: tune measures on a GPU: must be cuda or cuda:N (got {name!r})")
    try:
        opened: Device = open_device(name or "cuda")
    except CudaError as missing:
        reason = str(missing).splitlines()[0]
        raise CudaError(
            f"tune: needs a GPU to measure on, and there is none to use ({reason}); --dry-run with --target needs none"
        ) from None
    return opened


def _path(output: str | None, shipped: bool) -> Path:
    from ptxgen import tuning

    if shipped:
        return Path(tuning.SHIPPED)
    return Path(output or os.environ.get(tuning.VARIABLE) or tuning.own_path()).expanduser()


def _measure(
    jobs: Sequence[Job | ProductJob], device: Device, where: Target, seconds: float | None, gain: float
) -> Iterator[Found | FoundProduct]:
    """The outcome of each job, as far as the time goes."""
    ends = time.monotonic() + seconds if seconds else None
    for job in progress(jobs, "tuning"):
        if ends is not None and time.monotonic() > ends:
            return
        found = _search(job, device, where, gain)
        if not sys.stderr.isatty():
            say(f"{job.label()}: {found.before_us:.2f} us, best of {found.measured}: {found.best_us:.2f} us")
        yield found


def _search(job: Job | ProductJob, device: Device, where: Target, gain: float) -> Found | FoundProduct:
    from ptxgen.runtime.tools.product_timer import ProductTimer
    from ptxgen.runtime.tools.tuner import Timer
    from ptxgen.tuning_jobs.attention import search
    from ptxgen.tuning_jobs.products import ProductJob, search_product

    if isinstance(job, ProductJob):
        matrices = ProductTimer(device, job, where)
        return search_product(job, where, matrices.us, gain, matrices.prepare)
    timer = Timer(device, job, where)
    return search(job, where, timer.us, gain, timer.prepare)


def _check(path: Path) -> None:
    """Say what is wrong with the file before anything is measured."""
    from ptxgen.tuning import Table

    if path.exists():
        Table.read(path)
    place = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not os.access(place, os.W_OK):
        raise SpecError(f"-o: cannot be written (got {path})")


def _write(path: Path, found: Found | FoundProduct, where: Target) -> None:
    """Put a row into the table of that file, or into a new one: nothing is lost when the next job is interrupted."""
    from ptxgen.files.output import write_files
    from ptxgen.tuning import Table
    from ptxgen.tuning_jobs.products import FoundProduct

    before = Table.read(path) if path.exists() else Table()
    note = f"{found.best_us:.2f} us, before {found.before_us:.2f}"
    if isinstance(found, FoundProduct):
        after = before.with_rows(products=[found.job.row(where, found.best, note)])
    else:
        after = before.with_rows([found.job.row(where, found.best, note)])
    write_files(path.parent, {path.name: after.text()})


def _show(jobs: Sequence[Job | ProductJob], where: Target, as_json: bool) -> int:
    from ptxgen.attention.decode.plan import choice_of
    from ptxgen.tuning_jobs.attention import choices
    from ptxgen.tuning_jobs.products import ProductJob

    lines: list[dict[str, Any]] = []
    for job in jobs:
        if isinstance(job, ProductJob):
            every = list(job.choices(where))
            lines.append({"job": job.label(), "bytes": job.bytes, "choices": len(every), "now": vars(every[0])})
            continue
        now = choice_of(job.spec.attention, where, batched=bool(job.batches))
        lines.append({"job": job.label(), "bytes": job.bytes(max(job.sizes)), "choices": choices(job, where),
                      "now": vars(now)})  # fmt: skip
    if as_json:
        emit_json(lines)
        return 0
    rows = [(x["job"], f"{x['bytes'] / 1e6:.1f}", x["choices"], _words(x["now"])) for x in lines]
    table(("class", "MB", "choices", "now"), rows, f"to measure for {where}")
    return 0


def _words(choice: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())


def _report(results: Sequence[Found | FoundProduct], wanted: int, path: Path, as_json: bool) -> int:
    from ptxgen import tuning

    if as_json:
        emit_json([{"job": f.job.label(), "before_us": f.before_us, "best_us": f.best_us, "before": vars(f.before),
                    "best": vars(f.best), "measured": f.measured, "row": f.better} for f in results])  # fmt: skip
    else:
        table(
            ("class", "before us", "best us", "gain", "choice"),
            [(f.job.label(), f"{f.before_us:.2f}", f"{f.best_us:.2f}", f"{f.gain:.1%}",
              _words(vars(f.best)) if f.better else "as before") for f in results],
        )  # fmt: skip
    rows = sum(f.better for f in results)
    left = f"; {wanted - len(results)} classes were not measured" if len(results) < wanted else ""
    say(f"{rows} row{'' if rows == 1 else 's'} written to {path}{left}")
    if rows and path != Path(tuning.SHIPPED) and os.environ.get(tuning.VARIABLE) != str(path):
        say(f"to use it: export {tuning.VARIABLE}={path}")
    return 0
