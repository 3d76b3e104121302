"""A whole decode step of one sequence as one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import rules
from ptxgen.dtypes import DType, f16, f32, s32, u8, u32
from ptxgen.idioms import activation as activations
from ptxgen.idioms import rope as rotary
from ptxgen.idioms.rotating_rows import ROPE_FIELDS, STYLE
from ptxgen.kernel import KernelType, Spread, field, kernel_type
from ptxgen.launch import Launch, Param, buffer, workspace
from ptxgen.persistent.attend import Attend
from ptxgen.persistent.begin import Begin
from ptxgen.persistent.feed import Feed
from ptxgen.persistent.finish import Finish
from ptxgen.persistent.inputs import Inputs
from ptxgen.persistent.plan import BATCH, BLOCK, THREADS, Plan, Product
from ptxgen.persistent.rows import Rows
from ptxgen.persistent.steps import Steps

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

FORMATS = ("bf16",)
MOST_GROUP = 6  # query heads of a KV head
HEAD_DIMS = (16, 32, 64, 128, 256)
EVENTS = ("begin", "x", "units", "rows", "taken", "heads", "rotated", "scored")  # of an op
MOST_PARAMS = 500  # 4 KB of a launch's parameters


@kernel_type
class PersistentStep(KernelType):
    """One token's step in one launch of CTAs that wait for each other: all layers, logits, the likeliest next token.

    x f32 `[dim]` is the token's embedding (`embeds`: a row of `table` instead, packed `[vocab, dim]`), logits f32
    `[vocab]`, `chosen` the index of the largest, as `ArgMax` finds it; position and length are counted, as by
    `Advance`. Of every layer i: qkv_i, o_i, gate_up_i and down_i are packed weights as `Gemv` has them (q, k and v
    below one another), norm_i and mlp_norm_i f32 `[dim]` weights of RMS norms, bias_i f32 of q, k and v; k_cache_i and
    v_cache_i `[n_kv_heads, max_len, head_dim]`, which get a row at `position`. A position outside of the
    cache is not appended. `exchange` belongs to launches one after the other.

    Products are as exact as f32 (x is split into three bf16), sums are in a fixed order. Every CTA must be resident:
    a wait that lasts some seconds ends the launch in a trap.
    """

    n_layers: int = field(draws=(1, 2, 3), doc="layers")
    dim: int = field(draws=(64, 96, 192), doc="width of the residual stream")
    hidden: int = field(draws=(64, 160), doc="width of the feed-forward part")
    n_heads: int = field(draws=(8,), refuses=(0,))
    n_kv_heads: int = field(draws=(1, 2, 4), refuses=(-1,))
    head_dim: int = field(draws=HEAD_DIMS, refuses=(100,))
    max_len: int = field(draws=(1, 17, 64, 300), refuses=(-1,))
    vocab: int = field(draws=(50, 256), doc="logits")
    kv_dtype: DType = f16
    weights: str = field(default="bf16", doc="the format of all matrices")
    eps: float = field(
        default=1e-6, doc="added to the mean square", silent="beside squares about 1 it is less than a comparison tells"
    )
    norm_offset: float = field(default=0.0, draws=(0.0, 1.0), doc="added to the norms' weights")
    activation: str = field(default="silu", doc="of the gate")
    embeds: bool = field(default=False, doc="the token's row of `table` is read here, and not given as x")
    bias: bool = field(default=False, doc="q, k and v have a bias")
    style: str = field(default="neox", like=STYLE)
    rope: ClassVar[Spread] = ROPE_FIELDS
    ctas: int = field(
        default=132, draws=(4, 7), silent="it says who computes, not what", doc="CTAs, all of which must run at once"
    )
    split_rows: int = field(
        default=256, draws=(16, 256), silent="it says who computes, not what", doc="positions that one CTA takes alone"
    )
    group_parts: int = field(
        default=1, draws=(1, 2), refuses=(3,), silent="it says who computes, not what",
        doc="CTAs that share the query heads of a KV head",
    )  # fmt: skip
    shared_bytes: int = field(
        default=232448,
        draws=(232448,),
        silent="it says who computes, not what",
        doc="of shared memory that a CTA may have",
    )

    precise = True
    lowest_target = "sm_90"
    golden_targets = ("sm_90",)
    golden_lines = 3000
    goldens: ClassVar[tuple[Mapping[str, object], ...]] = (
        dict(
            n_layers=1, dim=64, hidden=96, n_heads=4, n_kv_heads=2, head_dim=16, max_len=64, vocab=100, ctas=5,
            shared_bytes=100000,
        ),
        dict(
            n_layers=1, dim=64, hidden=48, n_heads=5, n_kv_heads=1, head_dim=16, max_len=64, vocab=40, ctas=6,
            shared_bytes=100000, bias=True, embeds=True, norm_offset=1.0, style="norm", split_rows=16,
        ),
    )  # fmt: skip
    sizes = {"position": -1}
    unreported: ClassVar[Mapping[str, str]] = {
        r" barrier .*bar\.warp\.sync": "the lanes of a warp run together on the executor",
        r" wait .*%has_landed": "does not matter: it bounds the bytes that are under way, and orders nothing",
        r" fence .*atom\.acq_rel": "the CTA's best is a reduction that comes when the CTA leaves",
    }
    may_alias = MappingProxyType({"chosen": "token"})

    def rules(self) -> Iterator[str]:
        yield from rules.between("n_layers", self.n_layers, 1, 128)
        for name in ("dim", "hidden"):
            yield from rules.multiple_of(name, getattr(self, name), 16, 16, 1 << 16)
        yield from rules.between("n_kv_heads", self.n_kv_heads, 1, 256)
        yield from rules.between("n_heads", self.n_heads, 1, 1024)
        yield from rules.divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        yield from rules.one_of("head_dim", self.head_dim, HEAD_DIMS)
        yield from rules.between("max_len", self.max_len, 1, 1 << 20)
        yield from rules.between("vocab", self.vocab, 1, 1 << 20)
        yield from rules.one_of("kv_dtype", self.kv_dtype.name, ("f32", "f16", "bf16"))
        yield from rules.one_of("weights", self.weights, FORMATS)
        yield from rules.between("eps", self.eps, 0.0, 1.0)
        yield from rules.between("norm_offset", self.norm_offset, -16.0, 16.0)
        yield from rules.one_of("activation", self.activation, activations.KINDS)
        yield from rules.between("ctas", self.ctas, 1, 1024)
        yield from rules.between("split_rows", self.split_rows, 1, 1 << 20)
        yield from rules.between("group_parts", self.group_parts, 1, 16)
        if min(self.n_heads, self.n_kv_heads, self.group_parts) > 0 and self.n_heads % self.n_kv_heads == 0:
            group = self.n_heads // self.n_kv_heads
            yield from rules.divides("group_parts", self.group_parts, "n_heads / n_kv_heads", group)
        yield from rules.between("shared_bytes", self.shared_bytes, 1 << 14, 232448)
        yield from self.rotation.rules()
        yield from self._room()

    def _room(self) -> Iterator[str]:
        """What does not fit, where the fields themselves are legal."""
        sizes = (self.dim, self.hidden, self.vocab, self.n_layers, self.n_heads, self.n_kv_heads, self.ctas)
        sizes += (self.group_parts,)
        if (
            min(*sizes, self.max_len, self.split_rows) < 1
            or self.weights not in FORMATS
            or self.head_dim not in HEAD_DIMS
        ):
            return
        plan = self.plan
        if self.n_heads % plan.heads:
            return
        if plan.group > MOST_GROUP:
            yield f"n_heads: at most {MOST_GROUP} of a KV head have registers (got {plan.group})"
        if plan.attending > self.ctas:
            yield f"n_kv_heads: at most one a CTA (got {plan.heads}, ctas={self.ctas})"
        for product in plan.products[:2]:
            ctas = self.ctas - (plan.alone if product.name == "qkv" else 0)
            most = -(-product.records(plan.kind) // ctas)
            if most > BATCH:
                yield f"ctas: at most {BATCH} records of {product.name} a CTA (got {most} with ctas={self.ctas})"
        if plan.stages < 2:
            yield f"shared_bytes: too few for two slots of weights (got {self.shared_bytes})"
        if len(self.params()) > MOST_PARAMS:
            yield f"n_layers: at most {MOST_PARAMS} parameters are passed (got {len(self.params())})"

    @property
    def plan(self) -> Plan:
        """Its numbers."""
        return Plan(self)

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""
        return rotary.Rotation.of(self)

    def op_params(self, index: int) -> tuple[str, str, str]:
        """Names of an op's weight, norm and bias, "" for none."""
        layer, part = divmod(index, 4)
        if layer == self.n_layers:
            return "head", "norm", ""
        names = (
            (f"qkv_{layer}", f"norm_{layer}", f"bias_{layer}" if self.bias else ""), (f"o_{layer}", "", ""),
            (f"gate_up_{layer}", f"mlp_norm_{layer}", ""), (f"down_{layer}", "", ""),
        )  # fmt: skip
        return names[part]

    def _weight(self, name: str, product: Product) -> Param:
        kind, parts = self.plan.kind, 2 if product.gated else 1
        return buffer(name, u8, parts * product.records(kind), kind.record_bytes(product.cols))

    def params(self) -> tuple[Param, ...]:
        plan, kind = self.plan, self.plan.kind
        found = [buffer("x", f32, self.dim)]
        if self.embeds:
            found = [buffer("token", s32, 1, align=4)]
            found.append(buffer("table", u8, kind.records(self.vocab), kind.record_bytes(self.dim)))
        qkv, o, gate_up, down, head = plan.products
        cache = (self.n_kv_heads, self.max_len, self.head_dim)
        for i in range(self.n_layers):
            found += [buffer(f"norm_{i}", f32, self.dim), self._weight(f"qkv_{i}", qkv)]
            if self.bias:
                found.append(buffer(f"bias_{i}", f32, qkv.rows, align=4))
            found += [buffer(f"{x}_cache_{i}", self.kv_dtype, *cache, access="inout") for x in "kv"]
            found += [self._weight(f"o_{i}", o), buffer(f"mlp_norm_{i}", f32, self.dim)]
            found += [self._weight(f"gate_up_{i}", gate_up), self._weight(f"down_{i}", down)]
        found += [buffer("norm", f32, self.dim), self._weight("head", head)]
        found += [buffer(name, s32, 1, access="inout", align=4) for name in ("position", "length")]
        found.append(buffer("chosen", s32, 1, access="out", align=4))
        found.append(buffer("logits", f32, self.vocab, access="out", align=4))
        found.append(workspace("exchange", u32, plan.exchange_words, zeroed=True))
        return tuple(found)

    def launch(self, target: Target) -> Launch:
        return Launch((self.ctas, 1, 1), (BLOCK, 1, 1), self.plan.dynamic_bytes)

    def build(self, b: Builder) -> None:
        plan = self.plan
        begin = Begin(b, plan)
        begin.build()
        Feed(b, plan, begin)
        steps = Steps(b, plan, begin)
        with b.fragment("locate_digits"):
            digits = b.op("add.u32", "digits", begin.ring, plan.stages * plan.unit_bytes)
        Inputs(b, plan, begin, digits).build(steps)
        Rows(b, plan, begin, steps, digits).build()
        Attend(b, plan, begin, steps, digits).build()
        Finish(b, plan, begin, steps)
        self.mark(b, begin, steps)
        b.expose(plan=plan, threads=THREADS)

    def mark(self, b: Builder, begin: Begin, steps: Steps) -> None:
        """Fragments that note when an op has come where; none but in benchmarks."""
        b.without(*(f"mark_{event}" for event in EVENTS))

    # -- example and reference -----------------------------------------------------------------------------------------
    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), "position": (0, self.max_len - 1)}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        import numpy as np

        from ptxgen.weights.format import interleave

        kind, found = self.plan.kind, {}
        for index in range(self.plan.ops):
            product = self.plan.products[min(index % 4 if index < 4 * self.n_layers else 4, 4)]
            packs = []
            for _ in range(2 if product.gated else 1):
                values = rng.standard_normal((product.rows, product.cols), np.float32) * product.cols**-0.5
                packs.append(kind.pack(kind.quantise(values), product.rows, product.cols))
            records = product.records(kind)
            whole = interleave(packs[0], packs[1], records) if product.gated else packs[0]
            found[self.op_params(index)[0]] = whole.reshape(len(packs) * records, -1)
        at = sizes["position"] if sizes["position"] >= 0 else int(rng.integers(self.max_len))
        if self.embeds:
            table = rng.standard_normal((self.vocab, self.dim), np.float32)
            packed = kind.pack(kind.quantise(table), self.vocab, self.dim)
            found["table"] = packed.reshape(kind.records(self.vocab), -1)
            found["token"] = np.array([rng.integers(self.vocab)], np.int32)
        return {**found, "position": np.array([at], np.int32), "length": np.array([at + 1], np.int32)}

    def past(self, arguments: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        at = int(arguments["position"][0])
        for name in arguments:
            if "_cache_" in name:
                yield arguments[name], (slice(None), slice(at, None))

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        from ptxgen.persistent.reference import reference

        return reference(self, a)
