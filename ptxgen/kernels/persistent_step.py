"""A whole decode step of one sequence as one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import rules
from ptxgen.attention.persistent.merge import Attend
from ptxgen.attention.persistent.plan import Exchange, Place
from ptxgen.attention.reference import attend, cached_rows
from ptxgen.dtypes import f32, s32, u8, u32
from ptxgen.idioms import activation as activations
from ptxgen.idioms import kv_cache
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.kernel import kernel_type
from ptxgen.kernels.embedding import Embedding
from ptxgen.kernels.gemv import Gemv
from ptxgen.launch import Launch, Param, buffer, workspace
from ptxgen.persistent.begin import Begin
from ptxgen.persistent.feed import Feed
from ptxgen.persistent.fields import HEAD_DIMS, Fields
from ptxgen.persistent.finish import Finish
from ptxgen.persistent.inputs import Inputs
from ptxgen.persistent.plan import BATCH, BLOCK, THREADS, Plan, Product
from ptxgen.persistent.rows import Rows
from ptxgen.persistent.steps import Steps
from ptxgen.products.problem.reference import drawn_weight

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

FORMATS = ("bf16",)
MOST_GROUP = 6  # query heads of a KV head
EVENTS = ("begin", "x", "units", "rows", "taken", "heads", "rotated", "scored")  # of an op
MOST_PARAMS = 500  # 4 KB of a launch's parameters


@kernel_type
class PersistentStep(Fields):
    """One token's step in one persistent kernel, whose CTAs wait for each other: all layers, logits, the next token.

    x f32 `[dim]` is the token's embedding (`embeds`: a row of `table` instead, packed `[vocab, dim]`), logits f32
    `[vocab]`, `chosen` the index of the largest, as in `ArgMax`; position and length are advanced as by `Advance`. For
    every layer i: qkv_i, o_i, gate_up_i and down_i are packed weights as in `Gemv` (rows of q, then of k, then of v),
    norm_i and mlp_norm_i f32 `[dim]` weights of RMS norms, bias_i f32 of q, k and v. k_cache_i and v_cache_i
    `[n_kv_heads, max_len, head_dim]` get a row at `position`, unless it is outside the cache. Launches that share
    `exchange` must run one after the other.

    Products are as exact as f32 (x is split into three bf16), sums are in a fixed order. All CTAs must be resident at
    once: a wait of some seconds ends the launch with a trap.
    """

    # what a cache's idioms ask of a spec
    batched, indirect, page_size, page_layout, ring = False, True, 0, "hnd", 0
    precise = True
    lowest_target = "sm_90"
    golden_targets = ("sm_90",)
    golden_lines = 3000
    goldens: ClassVar[tuple[Mapping[str, object], ...]] = (
        dict(
            n_layers=1, dim=64, hidden=2080, n_heads=4, n_kv_heads=2, head_dim=16, max_len=64, vocab=100, ctas=5,
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
        r"ctas5_.* barrier .*split_takes_part_end": "does not matter: the warp that merges so few heads takes x, too",
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
        sizes = (self.dim, self.hidden, self.vocab, self.n_layers, self.n_heads, self.n_kv_heads, self.max_len)
        if (
            min(*sizes, self.ctas, self.split_rows, self.group_parts) < 1
            or self.weights not in FORMATS
            or self.head_dim not in HEAD_DIMS
        ):
            return
        plan, variant = self.plan, self.attention.variant
        if variant.window or variant.sinks or variant.head_scales or not variant.causal:
            yield f"attention: all positions are seen, without sinks and scales of heads (got {variant})"
        if self.n_heads % plan.attends.heads:
            return
        if plan.attends.group > MOST_GROUP:
            yield f"n_heads: at most {MOST_GROUP} of a KV head have registers (got {plan.attends.group})"
        if plan.attends.attending > self.ctas:
            yield f"ctas: must be at least n_kv_heads · group_parts, {plan.attends.attending} (got {self.ctas})"
        for product in plan.products[:2]:
            least = -(-product.records(plan.kind) // BATCH) + (plan.alone if product.name == "qkv" else 0)
            if least > self.ctas:
                yield f"ctas: must be at least {least} for the rows of {product.name} (got {self.ctas})"
        if plan.stages < 2:
            least = plan.static_bytes + plan.digit_bytes + 2 * plan.unit_bytes
            yield f"shared_bytes: must be at least {least} for two slots of weights (got {self.shared_bytes})"
        if len(self.params()) > MOST_PARAMS:
            a_layer = sum(param.name.endswith("_0") for param in self.params())
            most = self.n_layers - -(-(len(self.params()) - MOST_PARAMS) // a_layer)
            yield f"n_layers: must be at most {most}, as a launch passes {MOST_PARAMS} parameters (got {self.n_layers})"

    def target_rules(self, target: Target) -> Iterator[str]:
        if self.plan.static_bytes + self.plan.dynamic_bytes > target.shared_limit:
            yield (
                f"shared_bytes: must be at most {target.shared_limit} on {target} (got {self.shared_bytes}; nearest: "
                f"{target.shared_limit})"
            )

    @property
    def plan(self) -> Plan:
        """The step's geometry: ops, rows and bytes of each CTA."""
        return Plan(self)

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
        found += self.attention.variant.params(self.attention.problem)
        found += [buffer(name, s32, 1, access="inout", align=4) for name in ("position", "length")]
        found.append(buffer("chosen", s32, 1, access="out", align=4))
        found.append(buffer("logits", f32, self.vocab, access="out", align=4))
        found.append(workspace("exchange", u32, plan.exchange_words, zeroed=True))
        return tuple(found)

    def launch(self, target: Target) -> Launch:
        return Launch((self.ctas, 1, 1), (BLOCK, 1, 1), self.plan.dynamic_bytes, together=True)

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
        place = Place(
            begin.cta, begin.thread, begin.warp, begin.lane, begin.leads, steps.first_lane, begin.position,
            begin.turns, begin.polls,
        )  # fmt: skip
        of = plan.regions
        exchange = Exchange(steps.now, steps.next, steps.layer_at, of["qkv"], of["parts"], of["attended"])
        Attend(b, plan.attends, place, exchange, digits).build()
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

        kind, found = self.plan.kind, {}
        for index in range(self.plan.ops):
            product = self.plan.product(index)
            parts = 2 if product.gated else 1
            found[self.op_params(index)[0]] = drawn_weight(rng, kind, product.rows, product.cols, parts)
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

    def _multiplied(self, index: int, x: np.ndarray, a: Mapping[str, Any], **more: Any) -> np.ndarray:
        """What an op makes of x `[1, cols]`: as Gemv does."""
        at = self.plan.product(index)
        normed: dict[str, Any] = {"norm": "rms", "eps": self.eps, "norm_offset": self.norm_offset} if at.norm else {}
        weight, norm, bias = self.op_params(index)
        activation = self.activation if at.gated else ""
        product = Gemv(
            n=at.rows, k=at.cols, weights=self.weights, bias=bool(bias), activation=activation, gated=at.gated,
            residual="out" in more, **normed,
        )  # fmt: skip
        given = {"x": x, "weight": a[weight]} | ({"norm_weight": a[norm]} if norm else {})
        found: np.ndarray = product.reference(**given, **({"bias": a[bias]} if bias else {}), **more)["out"]
        return found

    def _attended(self, layer: int, qkv: np.ndarray, a: Mapping[str, Any], out: dict[str, np.ndarray]) -> np.ndarray:
        """The heads' outputs `[1, n_heads · head_dim]`; key and value join the caches in `out`."""
        import numpy as np

        position, attention = int(a["position"][0]), self.attention
        q, k, v = np.split(qkv.reshape(1, -1, self.head_dim), np.cumsum((self.n_heads, self.n_kv_heads)), 1)
        q, k = (rotary.rotate_rows(self.rotation, rows, np.array([position])) for rows in (q, k))
        caches = {f"{x}_cache": out[f"{x}_cache_{layer}"] for x in "kv"}
        before = [rows[:, : min(position, self.max_len)] for rows in cached_rows(attention, caches, 0)]
        kv_cache.append_rows(self, caches, {"k": k, "v": v}, np.array([position]), a)
        news = [rows[0][:, None].astype(self.kv_dtype.numpy).astype(np.float64) for rows in (k, v)]
        keys, values = (np.concatenate(both, 1) for both in zip(before, news, strict=True))
        heads, _ = attend(attention, q.swapaxes(0, 1), keys, values, keys.shape[1] - 1, a)
        return heads.reshape(1, -1).astype(np.float32)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out = {name: a[name].copy() for name in a if "_cache_" in name}
        x = a["x"][None] if not self.embeds else self._embedding.reference(
            table=a["table"], tokens=a["token"], out=np.zeros((1, self.dim), np.float32)
        )["out"]  # fmt: skip
        for layer in range(self.n_layers):
            qkv = self._multiplied(4 * layer, x, a)
            x = self._multiplied(4 * layer + 1, self._attended(layer, qkv, a, out), a, out=x)
            x = self._multiplied(4 * layer + 3, self._multiplied(4 * layer + 2, x, a), a, out=x)
        logits = self._multiplied(4 * self.n_layers, x, a)
        counted = np.int32(0 <= int(a["position"][0]) < self.max_len)
        out |= {name: a[name] + counted for name in ("position", "length")}
        return {**out, "logits": logits[0], "chosen": logits.argmax(1).astype(np.int32)}

    @property
    def _embedding(self) -> Embedding:
        return Embedding(dim=self.dim, vocab=self.vocab, weights=self.weights)
