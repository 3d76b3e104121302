"""Tuning as data: the file format, the rows, and which table is in force. What a choice does to a kernel's geometry is
the plan's (`attention.decode.plan`) and the products' (`products.geometry`); the file that is shipped is `table.json`
beside this one.

A table is a JSON file with one row a line:

    {"sm": "sm_90", "head_dim": 128, "group": 4, "kv_bytes": 2, "capacity": [2049, 4096],
     "choose": {"warps": 8, "cluster": 4, "grid": 128}, "note": "us 5.9"}

Every key before `choose` narrows the row; one that is absent matches everything. `sm` is a row of the plan's `CHIPS`,
`group` the query heads of a KV head, `kv_dtype` the element type and `kv_bytes` its bytes, `capacity` the first and
last number of positions that can be visible (`max_len`, or the window where there is one), `batched`, `paged`,
`strided` (caches that grow) and `programmatic` (the launch) true or false, and so is `invariant`, which is false where
it is absent. The first row that matches counts: exact rows stand above general ones. `choose` has fields of `Choice`;
what it leaves out, and every shape that no row names, is decided by the thresholds of the architecture in `models`.

`products` has rows of the same kind for products with one token on tensor cores (Gemv, NextToken):

    {"sm": "sm_90", "weights": "q4_k", "n": 2048, "k": 5632, "choose": {"warps": 12, "stages": 2, "ctas": 132}}

with keys of `ProductShape` and those of `ProductChoice`, of which `split` and `x_first` may be left out; every other
product is shared out as its geometry says.

`PTXGEN_TUNING` names a user's own table, as `ptxgen tune` writes it. Its rows stand before the shipped ones, its models
replace theirs. Texts are deterministic for a given table; kernels in memory are kept apart by the table's digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ptxgen.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
VARIABLE = "PTXGEN_TUNING"
SHIPPED = os.path.join(os.path.dirname(__file__), "table.json")


def _bounds(least: int, most: int, *, power: bool = False, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"least": least, "most": most, "power": power})


@dataclass(frozen=True)
class Choice:
    """What of a plan is a matter of speed; upper bounds, which a plan lowers where a shape has less to share.

    `warps` of a CTA; CTAs of a `cluster`; CTAs of the `grid` that the units of one sequence, or of a batch, are split
    into; tiles that a warp has `in_flight`; `split_positions`: a batch's long sequences get splits of at most so many,
    and an invariant batch's sequences splits of so many, until the grid is used up.
    `stages`: tiles of a warp that bulk copies bring to shared memory ahead of their use, in place of `in_flight`.
    `mergers`: at most so many CTAs merge the splits of a unit, a part of the output each: the last to start. 0: one
    does, the last to leave its record.
    `room`: CTAs of a batch that run at the same time; its units are split so that these, or whole multiples of them,
    are nearly all at work. 0: the units of a batch are split into `grid` CTAs and no more. Not 0: a warp of one
    sequence, too, has two tiles at least. `rounds`: 1: splits that are
    due to `split_positions` are so many that they, too, fill whole multiples of `room`.
    `last_first`: 1: the first CTAs take a batch's last sequences, whose rows the L2 may still hold behind a kernel that
    wrote the caches. `aside`: 1: loads of rows to registers have the cache policy `L2::evict_unchanged`.
    `late`: 1: where a programmatic launch has more CTAs than half of `room`, and no more than it, the next launch may
    begin when they have read their tiles, in place of at once.
    """

    warps: int = _bounds(1, 32)
    cluster: int = _bounds(1, 16, power=True)
    grid: int = _bounds(1, 1 << 20)
    in_flight: int = _bounds(1, 64)
    split_positions: int = _bounds(64, 1 << 24)
    stages: int = _bounds(0, 64, default=0)
    mergers: int = _bounds(0, 16, power=True, default=0)
    room: int = _bounds(0, 1 << 20, default=0)
    rounds: int = _bounds(0, 1, default=0)
    last_first: int = _bounds(0, 1, default=0)
    aside: int = _bounds(0, 1, default=0)
    late: int = _bounds(0, 1, default=0)


@dataclass(frozen=True)
class Model:
    """Thresholds of the choice for shapes that no row names.

    Tiles are those of the visible positions. `tiny`: up to so many a cluster of CTAs of four warps takes a unit;
    `single`: up to here one of eight warps, where there is room for all units' clusters; `middle`: the same where they
    fill a third of the chip; `short`: four warps where there is no room. `many`: CTAs a unit gets from which on pairs
    of CTAs merge before they leave records. `bytes_in_flight` of a warp. `split_positions`: of `Choice`;
    `invariant_positions`: the same where splits follow the length alone.
    """

    tiny: int = _bounds(0, 1 << 24)
    short: int = _bounds(0, 1 << 24)
    single: int = _bounds(0, 1 << 24)
    middle: int = _bounds(0, 1 << 24)
    many: int = _bounds(1, 1 << 20)
    bytes_in_flight: int = _bounds(64, 1 << 20)
    split_positions: int = _bounds(64, 1 << 24)
    invariant_positions: int = _bounds(64, 1 << 24)


@dataclass(frozen=True)
class Shape:
    """What the conditions of a row are matched against, by their names in the table."""

    sm: str
    head_dim: int
    group: int
    n_kv_heads: int
    kv_dtype: str
    kv_bytes: int
    capacity: int
    batched: bool
    paged: bool
    invariant: bool = False
    programmatic: bool = False
    strided: bool = False


@dataclass(frozen=True)
class ProductChoice:
    """What of a product with one token is a matter of speed: `warps` of a CTA, tiles on their way of each (`stages`),
    and `ctas`; upper bounds, which a matrix with less work lowers. `split`: CTAs of a cluster, which share k.
    `x_first`: 1: launches that wait for nothing ask for x before the first weights."""

    warps: int = _bounds(1, 32)
    stages: int = _bounds(1, 8)
    ctas: int = _bounds(1, 1 << 16)
    split: int = _bounds(1, 8, power=True, default=1)
    x_first: int = _bounds(0, 1, default=0)


@dataclass(frozen=True)
class ProductShape:
    """What rows of products are matched against: the architecture (a row of the plan's `CHIPS`), the format of the
    weights, outputs and inputs, whether it is two matrices, gate and up, and whether launches may overlap."""

    sm: str
    weights: str
    n: int
    k: int
    gated: bool = False
    programmatic: bool = False


class Row(NamedTuple):
    """A class of shapes and what to choose for it, as pairs of name and value."""

    where: tuple[tuple[str, Any], ...]
    choose: tuple[tuple[str, int], ...]
    note: str = ""

    def matches(self, shape: Shape | ProductShape) -> bool:
        """Whether the shape is in the class."""
        said = False
        for name, wanted in self.where:
            if not _matches(name, wanted, getattr(shape, name)):
                return False
            said = said or name == "invariant"
        return said or isinstance(shape, ProductShape) or not shape.invariant

    def plain(self) -> dict[str, Any]:
        """A row as it stands in the file."""
        where = {name: list(value) if isinstance(value, tuple) else value for name, value in self.where}
        return where | {"choose": dict(self.choose)} | ({"note": self.note} if self.note else {})


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in their order, the models by architecture, and the rows of products."""

    rows: tuple[Row, ...] = ()
    models: tuple[tuple[str, Model], ...] = ()
    products: tuple[Row, ...] = ()

    @classmethod
    def read(cls, path: str | Path) -> Table:
        """The table of a file. Raises `SpecError` that names the file, the row and what is wrong with it."""
        import json  # slow to import, as pathlib is; a table is read at the first plan

        try:
            with open(path, encoding="utf-8") as file:
                plain = json.load(file)
        except OSError as failure:
            raise SpecError(f"{path}: a tuning table that cannot be read ({failure.strerror or failure})") from None
        except (ValueError, RecursionError) as failure:
            raise SpecError(f"{path}: not JSON ({failure})") from None
        return cls.of(plain, str(path))

    @classmethod
    def of(cls, plain: Any, source: str) -> Table:
        """The table of a parsed file."""
        if not isinstance(plain, dict) or not plain.keys() <= {"models", "rows", "products"}:
            raise SpecError(f"{source}: must be an object with models, rows and products (got {_kind(plain)})")
        rows, models, products = plain.get("rows", []), plain.get("models", {}), plain.get("products", [])
        if not isinstance(rows, list) or not isinstance(models, dict):
            raise SpecError(f"{source}: rows must be a list and models an object (got {_kind(rows)}, {_kind(models)})")
        if not isinstance(products, list):
            raise SpecError(f"{source}: products must be a list (got {_kind(products)})")
        return cls(
            tuple(_row(row, f"{source}: row {index}") for index, row in enumerate(rows, 1)),
            tuple((sm, _model(values, f"{source}: models: {sm}")) for sm, values in models.items()),
            tuple(_product(row, f"{source}: products: row {index}") for index, row in enumerate(products, 1)),
        )

    def over(self, other: Table) -> Table:
        """These rows before the other's; these models in place of the other's."""
        models = tuple((dict(other.models) | dict(self.models)).items())
        return Table(self.rows + other.rows, models, self.products + other.products)

    def with_rows(self, rows: Iterable[Row] = (), products: Iterable[Row] = ()) -> Table:
        """These rows in the place of those of the same class; those of new classes before all others."""
        return Table(_put(rows, self.rows), self.models, _put(products, self.products))

    def model(self, sm: str) -> Model:
        """The thresholds of an architecture."""
        return dict(self.models)[sm]

    def decides(self, shape: Shape) -> frozenset[str]:
        """What the first row that matches says of a choice, by name."""
        row = next((row for row in self.rows if row.matches(shape)), None)
        return frozenset(name for name, _ in row.choose) if row else frozenset()

    def choose(self, shape: Shape, otherwise: Choice) -> Choice:
        """The choice of the first row that matches; what it leaves open is as `otherwise`."""
        row = next((row for row in self.rows if row.matches(shape)), None)
        return otherwise if row is None else replace(otherwise, **dict(row.choose))

    def product(self, shape: ProductShape) -> ProductChoice | None:
        """The choice of the first row that matches."""
        row = next((row for row in self.products if row.matches(shape)), None)
        return None if row is None else ProductChoice(**dict(row.choose))

    def text(self) -> str:
        """The file: a line a row."""
        import json

        models = [f"  {json.dumps(sm)}: {json.dumps(_plain(model))}" for sm, model in self.models]
        rows, products = ([f"  {json.dumps(row.plain())}" for row in some] for some in (self.rows, self.products))
        parts = [f' "models": {_block("{", models, "}")}'] if models else []
        parts += [f' "rows": {_block("[", rows, "]")}']
        parts += [f' "products": {_block("[", products, "]")}'] if products else []
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file's text."""
        import hashlib

        return hashlib.sha256(self.text().encode()).hexdigest()


def fixed(choice: Choice | ProductChoice) -> Table:
    """A table that makes this choice for every shape."""
    choose = tuple(_plain(choice).items())
    if isinstance(choice, ProductChoice):
        return Table(products=(Row((), choose),))
    return Table(tuple(Row((("invariant", flag),), choose) for flag in (False, True)))


# -- which table counts ------------------------------------------------------------------------------------------------

_in_force: Table | None = None


@cache
def shipped() -> Table:
    """The table that comes with the package."""
    return Table.read(SHIPPED)


def in_force() -> Table:
    """The table that plans are made with: the shipped one, under the one that `PTXGEN_TUNING` named at first use."""
    global _in_force
    if _in_force is None:
        own = os.environ.get(VARIABLE)
        try:
            _in_force = Table.read(own).over(shipped()) if own else shipped()
        except SpecError as wrong:
            raise SpecError(f"{VARIABLE}: {wrong}") from None
    return _in_force


def own_path() -> Path:
    """Where a user's own table lies unless `PTXGEN_TUNING` names another; it is read only where that says so."""
    from pathlib import Path

    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path(os.environ.get("HOME") or "~").expanduser() / ".config")
    return home / "ptxgen" / "tuning.json"


@contextmanager
def using(table: Table | str | Path) -> Iterator[Table]:
    """Every plan within, in any thread, is made with this table (or file) over the shipped one."""
    global _in_force
    before = in_force()
    own = table if isinstance(table, Table) else Table.read(table)
    _in_force = own.over(shipped())
    try:
        yield _in_force
    finally:
        _in_force = before


# -- reading a file ----------------------------------------------------------------------------------------------------


def _row(plain: Any, source: str, shape: Any = Shape, choice: Any = Choice) -> Row:
    if not isinstance(plain, dict) or not isinstance(plain.get("choose"), dict):
        raise SpecError(f"{source}: must be an object with choose, an object (got {_kind(plain)})")
    where = {name: value for name, value in plain.items() if name not in ("choose", "note")}
    known = {f.name: str(f.type) for f in fields(shape)}
    for name, value in where.items():
        if name not in known:
            raise SpecError(f"{source}: {name}: no such key; there are {', '.join(known)}, choose, note")
        _check_class(name, value, known[name], source)
    values = _integers(plain["choose"], choice, f"{source}: choose")
    return Row(
        tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in where.items()),
        tuple(values.items()),
        str(plain.get("note", "")),
    )


def _product(plain: Any, source: str) -> Row:
    row = _row(plain, source, ProductShape, ProductChoice)
    return _complete(row, {name for name, _ in row.choose}, ProductChoice, f"{source}: choose")


def _complete(whole: T, given: Iterable[str], cls: Any, source: str) -> T:
    """What was read, unless one of the fields is missing."""
    if missing := [f.name for f in fields(cls) if f.default is MISSING and f.name not in given]:
        raise SpecError(f"{source}: {', '.join(missing)}: must be given")
    return whole


def _check_class(name: str, value: Any, kind: str, source: str) -> None:
    if name == "capacity":
        fine = isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)
        rule = "must be [first, last], two integers" if not fine or value[0] > value[1] else ""
    else:
        rule = "" if type(value).__name__ == kind else f"must be of type {kind}"
    if rule:
        raise SpecError(f"{source}: {name}: {rule} (got {_json(value)})")


def _model(plain: Any, source: str) -> Model:
    return Model(**_complete(_integers(plain, Model, source), plain, Model, source))


def _integers(plain: Any, cls: Any, source: str) -> dict[str, int]:
    if not isinstance(plain, dict):
        raise SpecError(f"{source}: must be an object (got {_kind(plain)})")
    rules: dict[str, Mapping[Any, Any]] = {f.name: f.metadata for f in fields(cls)}
    for name, value in plain.items():
        if name not in rules:
            raise SpecError(f"{source}: {name}: no such key; there are {', '.join(rules)}")
        least, most, power = (rules[name][key] for key in ("least", "most", "power"))
        if type(value) is not int or not least <= value <= most or (power and value & (value - 1)):
            what = "a power of two" if power else "an integer"
            raise SpecError(f"{source}: {name}: must be {what} from {least} to {most} (got {_json(value)})")
    return plain


def _matches(name: str, wanted: Any, value: Any) -> bool:
    return bool(wanted[0] <= value <= wanted[1]) if name == "capacity" else bool(wanted == value)


def _plain(values: Choice | ProductChoice | Model) -> dict[str, int]:
    return {f.name: getattr(values, f.name) for f in fields(values)}


def _put(new: Iterable[Row], rows: tuple[Row, ...]) -> tuple[Row, ...]:
    left = {row.where: row for row in new}
    kept = [left.pop(row.where, row) for row in rows]
    return (*left.values(), *kept)


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def _kind(value: Any) -> str:
    return f"an object with {', '.join(value)}" if isinstance(value, dict) else type(value).__name__


def _block(opening: str, lines: list[str], closing: str) -> str:
    return "\n".join([opening, ",\n".join(lines), f" {closing}"]) if lines else opening + closing
