"""The attention of a step: q, k and v, rotation, append, attention over the cache; positions and lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ptxgen.dtypes import DType, bf16, f16, f32, s8, s32
from ptxgen.kernels.multi_head_attention import MultiHeadAttention
from ptxgen.kernels.packed_qkv_append import OF_PRODUCT
from ptxgen.kernels.rope_kv_append import can_norm_heads
from ptxgen.models.attention import Attention
from ptxgen.models.caches import CacheForm
from ptxgen.models.program import Ref
from ptxgen.models.spec import QKV
from ptxgen.models.step.row_forms import FEW, STACK
from ptxgen.models.step.tiled import TiledProducts
from ptxgen.products.digits_bf16 import layout as bf16_layout
from ptxgen.products.wgmma.tiling.shape import MOST_ROWS_FIRST
from ptxgen.scales import scale_groups
from ptxgen.spec.cache_fields import PAGE_LAYOUTS
from ptxgen.targets import target as parse_target

# Rows of a prompt's step up to which each reads the cache by itself, as a token does, by the bits of a query, if they
# are FEWEST or fewer, or read no more than so many elements of a position together. Others read it once, and CTAs share
# keys. (Measured on an H200 at depths of 0 to 16384: so 16 to 32 rows of Llama 3 8B take 6 % more to 64 % less, and
# those of Qwen2.5 1.5B, with a quarter of the elements, 31 % more to 21 % less.)
FEW_QUERIES = {32: 32, 16: 16}
FEWEST, FEW_ELEMENTS = 8, 8192
# Elements of all keys from which on attention waits until a product of exact rows that appends has ended; below it asks
# for keys while that runs. (Llama 3 8B, 8 sequences on an H200: 85 µs of 4078 less at depth 512, level at 2048.)
HELD_KEYS = 2048 * 8192
MANY_KEYS = 8192  # elements of a position of all sequences: 8 of llama-3-8b, 32 of TinyLlama 1.1B or Qwen2.5 1.5B


@dataclass(kw_only=True)
class AttentionOfStep(TiledProducts):
    """What a step is told, and the ops of its attention."""

    step: str
    kv_dtype: DType
    choice: str
    rings: int
    page_size: int
    pages: int
    page_layout: str
    attention_scratch: bool
    _prompt_fields_of: dict[Attention, dict[str, Any]] = field(default_factory=dict, init=False)

    def _length(self) -> str:
        """How long sequences are with this step's tokens."""
        if self.step == "decode":
            return self._state("length")
        if self.step == "prefill":
            return self.tensor("kv_len", "input", (1,), s32)
        return self.tensor("lengths", self._counted(), (self.rows,), s32)

    def _counted(self) -> str:
        """What positions and lengths of a batch are: the host says them at every step, and a history counts them."""
        return "state" if self.choice == "penalise" else "input"

    def _state(self, name: str) -> str:
        """A counter of the sequence: "position" is where the next token goes, "length" one more."""
        return self.tensor(name, "state", (1,), s32)

    @property
    def _ends_prompt(self) -> bool:
        """Whether only the last row goes on behind this layer's attention: none else is asked for its token."""
        return self.step == "prefill" and self.layer + 1 == self.model.shape.n_layers

    def _last_row(self, name: str) -> Ref:
        """The last of the step's rows."""
        held = self.tensors[name]
        return Ref(name, (self.rows - 1) * held.shape[-1] * held.dtype.bytes)

    def _queries(self, x: str) -> tuple[Attention, Ref]:
        """What the layer attends by, and its queries; keys and values are in the caches."""
        model = self.model
        kind = model.layer(self.layer)
        ring = CacheForm(rings=self.rings).ring(model.shape, kind)
        style = "norm" if self._pairs() else model.rope_style
        attention = Attention.of(model.shape, kind, f32, self.kv_dtype, style=style, precise=True, ring=ring)
        if self._fuses(attention):
            q = self._qkv_append(x, attention)
        elif self._fuses_few(attention):
            q = self._append_few(x, attention)
        elif self._fuses_tiles(attention):
            q = self._append_tiles(x, attention)
        elif self._stacks_rows(attention):
            q = self._append_stacked(x, attention)
        else:
            q, k, v = self._qkv(x, normed=not self._append_norms(attention))
            self._append(attention, {"k": k, "v": v} | ({"q": q} if attention.rope else {}))
        return replace(attention, q_dtype=self.tensors[q.tensor].dtype), q

    def _attention(self, attends: Attention, q: Ref) -> str:
        """Attention of queries over the caches."""
        model = self.model
        if self.reads_halves("o_proj", model.q_width):
            out = self._attended_halves()
        elif not (out := self._attended_tiles()):
            out = self.tensor(self.at("attention.out"), "scratch", (self.rows, model.q_width), attends.q_dtype)
        self._attend(attends, q, out)
        return out

    def _attention_out(self, x: str | Ref, attended: str | Ref) -> None:
        """The product behind attention, added to the residual stream."""
        model = self.model
        weight = self.matrix(self.at("o_proj"), [self._part("o_proj")], model.q_width)
        self._add(x, "o_proj", model.block.attention_post_norm, weight, model.q_width, attended)

    def _attended_halves(self) -> str:
        """Memory for what attention makes, as bf16 digits; rows of a tile that no sequence has stay zero."""
        digits, sums = bf16_layout.DIGITS[self._rounding], self.has_sums(self._kinds("o_proj"))
        shape = self._extents(bf16_layout.shape(self.model.q_width, digits, sums=sums))
        name = "attention.digits.sums" if sums else "attention.digits"  # layers may have both
        return self.tensor(name, "state", shape, bf16, zeroed=True)

    @property
    def has_five_launches(self) -> bool:
        return super().has_five_launches and self.kv_dtype != s8  # whose scales no product finds

    def _fuses(self, attention: Attention) -> bool:
        """Whether one launch makes q, k and v of one token, rotates and appends."""
        return self.rows == 1 and self.step != "batch" and self._rotates_in_place(attention)

    def _fuses_few(self, attention: Attention) -> bool:
        """The same for a few tokens as bf16 digits."""
        kinds = self._kinds(*QKV)
        few = bool(self.model.block.attention_norm) and self.takes_halves(kinds, self.model.dim)
        return few and self._rotates_in_place(attention)

    def _fuses_tiles(self, attention: Attention) -> bool:
        """The same for more tokens, in tiles."""
        kinds, dim = self._kinds(*QKV), self.model.dim
        some = self.step == "batch" and not self.batch_invariant and FEW < self.rows <= MOST_ROWS_FIRST
        tiled = self.in_units(kinds, dim) or self._is_tiled(kinds, dim)
        return some and tiled and self._rotates_in_place(attention)

    def _rotates_in_place(self, attention: Attention) -> bool:
        """Whether a product of q, k and v can rotate its own results and append them."""
        rotates = attention.rope is not None and attention.style == "norm" and not self.model.block.qk_norm
        fits = attention.head_dim % STACK == 0 and self.kv_dtype != s8
        return rotates and fits and self._stacks()[0] != QKV[:1] and len(self._biased()) in (0, len(QKV))

    def _append_few(self, x: str, attention: Attention) -> Ref:
        """The queries of a few tokens; keys and values are in the caches."""
        model, norm = self.model, self.model.block.attention_norm
        q = self.scratch("q.out", model.q_width)
        given: dict[str, str | Ref] = {**self._caches(attention), **self._position()}
        fields: dict[str, Any] = {"bias": bool(self._biased()), "precision": self._rounding}
        if self._biased():
            given["bias"] = self._qkv_bias()
        left = self.normed.get(self.at(norm))
        if left:
            given["squares"] = f"{left}.squares"
            fields |= self._divided_out
        given["x"] = left or self._half_rows("qkv", x, model.dim, norm, self._kinds(*QKV))
        if self._has_many_keys and self._rounding == "exact":  # as in `_append`; rounded rows gain by it at any depth
            fields["holds"] = HELD_KEYS // (self.rows * self.model.kv_width)
        for names in self._stacks():
            weight, heads = self._stacked(names), "".join(name[0] for name in names)
            kind = self.tensors[weight].format
            width = sum(self.model.products()[name][0] for name in names)
            wanted = {"n": width, "k": model.dim, "weights": kind, "precision": self._rounding}
            chosen = self._digit_gemm(**wanted, halves=self.has_sums([kind]))
            own = fields | {"k": model.dim, "split": chosen.split, "share": chosen.share, "weights": kind}
            own = attention.fields("digit_qkv_append", **self._in_pages(), heads=heads, **own)
            role = "qkv_append" if names == QKV else f"{heads}_append"
            written = {"weight": weight} if heads == "v" else {"weight": weight, "q": q}
            self.op("digit_qkv_append", role, {**given, **written}, {"rows": self.rows} | self._paged(), **own)
        return Ref(q)

    def _append_tiles(self, x: str, attention: Attention) -> Ref:
        """The queries of tokens in tiles; keys and values are in the caches."""
        model = self.model
        source, norm = self._input("qkv", x, model.block.attention_norm)
        assert isinstance(source, str), "tiles are a tensor of their own"
        q = self.scratch("q.out", model.q_width)
        common: dict[str, str | Ref] = {"x": source, **self._caches(attention), **self._position()}
        common |= {"squares": f"{source}.squares"} if norm else {}
        for names in self._stacks():
            weight, heads, bias = self._stacked(names), "".join(name[0] for name in names), self._bias_of(names)
            kind, width = self.tensors[weight].format, sum(model.products()[name][0] for name in names)
            given = {**common, "weight": weight, **self._beside_tiles(source, kind)}
            given |= ({"bias": bias} if bias else {}) | ({"q": q} if heads != "v" else {})
            fields: dict[str, Any] = {"k": model.dim, "weights": kind, "bias": bool(bias)}
            fields |= self._divided_out if norm else {}
            fields |= self._tile_fields(source, n=width, **fields)
            holds = self._has_many_keys and names[-1] == QKV[-1]  # attention waits, the product of v does not
            taken = {name: value for name, value in fields.items() if name in OF_PRODUCT}
            own = attention.fields("packed_qkv_append", **self._in_pages(), heads=heads, holds=holds, **taken)
            role = "qkv_append" if names == QKV else f"{heads}_append"
            self.op("packed_qkv_append", role, given, {"rows": self.rows} | self._paged(), **own)
        return Ref(q)

    def _qkv_append(self, x: str, attention: Attention) -> Ref:
        """The queries; keys and values are in the cache."""
        model, norm = self.model, self.model.block.attention_norm
        weights = [self._stacked(names) for names in self._stacks()]
        q = self.scratch("q.out", model.q_width)
        given: dict[str, str | Ref] = {"x": x, "q": q, **self._caches(attention), **self._position()}
        given |= dict(zip(("weight", "v_weight"), weights, strict=False))
        kinds = dict(zip(("weights", "v_weights"), (self.tensors[each].format for each in weights), strict=False))
        fields: dict[str, Any] = {"k": model.dim, "bias": bool(self._biased()), **kinds}
        if self._biased():
            given["bias"] = self._qkv_bias()
        if norm:
            fields |= self._norm_fields()
            given["norm_weight"] = self._norm_weight(norm)
        self.op("qkv_append", "qkv_append", given, {}, **attention.fields("qkv_append", **fields))
        return Ref(q)

    def _stacks_rows(self, attention: Attention) -> bool:
        """Whether q and k of several rows come from one product, as heads of one row."""
        kinds = self._kinds(*QKV)
        dim = self.model.dim
        tiled = self.step == "batch" or self.digits(kinds, dim) or self.in_units(kinds, dim) or self.packs(kinds, dim)
        one = tiled and attention.rope is not None and (not self.model.block.qk_norm or self._append_norms(attention))
        return one and self._stacks()[0] != QKV[:1]

    def _append_stacked(self, x: str, attention: Attention) -> Ref:
        """The queries of several rows, whose products give rows of q, k and v, or of q and k."""
        model, stacks = self.model, self._stacks()
        kinds, q_dtype = self._kinds(*QKV), self._attended()
        narrow = {"out_dtype": q_dtype} if q_dtype != f32 and self._is_tiled(kinds, model.dim) else {}
        if model.block.qk_norm:  # before that norm heads may be larger than 16 bits take
            narrow = {}
        source, norm = self._input("qkv", x, model.block.attention_norm, **narrow)
        made = [self._products_of(names, source, norm, whole_rows=True, **narrow) for names in stacks]
        rows = [next(products).tensor for products in made]
        stacked = "".join(name[0] for name in stacks[0])
        given: dict[str, str | Ref] = dict(zip((stacked, "v"), rows, strict=False))
        q = given["q_out"] = self.tensor(self.at("q.out"), "scratch", (self.rows, model.q_width), q_dtype)
        attention = replace(attention, q_dtype=self.tensors[rows[0]].dtype)
        self._append(attention, given, stacked=stacked, in_place=False, out_dtype=q_dtype.name)
        return Ref(q)

    def _is_tiled(self, kinds: Sequence[str], k: int) -> bool:
        """Whether rows of k columns are rounded once into tiles for weights of these formats."""
        return self.packs(kinds, k) and not (self.digits(kinds, k) or self.in_units(kinds, k))

    def _attended(self) -> DType:
        """The type of a prompt's queries and of what attention makes of them: the cache's, or bf16 over a cache of 8
        bits, where that is fast."""
        tiled = self._is_tiled(self._kinds("o_proj"), self.model.q_width)
        narrow = self.precision != "exact" and self.step == "prefill" and tiled
        if not narrow or self.kv_dtype.bits > 16:
            return f32
        return self.kv_dtype if self.kv_dtype.bits == 16 else bf16

    def _append_norms(self, attention: Attention) -> bool:
        """Whether the launch that rotates and appends also norms the heads of q and k."""
        rotates = attention.rope is not None
        return rotates and self.model.block.qk_norm == "head" and can_norm_heads(attention.head_dim, attention.style)

    def _qkv(self, x: str, *, normed: bool) -> list[Ref]:
        """Queries, keys and values of a layer; `normed` where the family norms them, as the launch that appends does
        not."""
        model, shape = self.model, self.model.shape
        source, norm = self._input("qkv", x, model.block.attention_norm)
        found = [ref for names in self._stacks() for ref in self._products_of(names, source, norm)]
        if model.block.qk_norm and normed:
            for i, (name, n_heads) in enumerate((("q", shape.n_heads), ("k", shape.n_kv_heads))):
                rows = self.rows * (n_heads if model.block.qk_norm == "head" else 1)
                out = self.scratch(f"{name}_norm.out", model.products()[QKV[i]][0])
                self._rms(f"{name}_norm", f"{name}_norm", found[i], out, rows)
                found[i] = Ref(out)
        return found

    def _caches(self, attention: Attention) -> dict[str, str]:
        """The layer's cache, by parameter name."""
        shape = self.model.shape
        lead = (self.rows,) if self.step == "batch" else ()
        rows = (*lead, shape.n_kv_heads, attention.ring or shape.max_len)
        if self.page_size:
            axes = (shape.n_kv_heads, self.page_size)
            rows = (self.pages, *(axes if self.page_layout == PAGE_LAYOUTS[0] else axes[::-1]))
        wanted = [(name, shape.head_dim, self.kv_dtype) for name in ("k_cache", "v_cache")]
        if self.kv_dtype == s8:
            wanted += [(name, scale_groups(shape.head_dim), f16) for name in ("k_scales", "v_scales")]
        found = {name: self.tensor(self.at(name), "state", (*rows, width), of) for name, width, of in wanted}
        if self.page_size:
            entries = -(-shape.max_len // self.page_size)
            found["page_table"] = self.tensor("page_table", "input", (self.rows, entries), s32)
        return found

    def _position(self) -> dict[str, str]:
        """Where rows are appended, by parameter name."""
        if self.step == "batch":
            return {"positions": self.tensor("positions", self._counted(), (self.rows,), s32)}
        return {"position": self._state("position")}

    def _append(self, attention: Attention, rows: Mapping[str, str | Ref], **how: Any) -> None:
        """Rotate, where these layers do, and append; `rows` by parameter name.

        In a batch with many keys a position this begins when the products are done: attention that asks for keys while
        they run makes the step 3 to 10 % longer at 4096 positions; with few of them it makes it shorter."""
        batched = self.step == "batch"
        if batched and self._has_many_keys:
            how["programmatic"] = False
        role, kernel = attention.append
        given = {**rows, **self._caches(attention), **self._position()}
        if self.step == "prefill":
            how["kept"], given["n_kept"] = True, self.tensor("n_kept", "input", (1,), s32)
        if self._append_norms(attention):
            given |= {f"{name}_norm_weight": self._norm_weight(f"{name}_norm") for name in "qk"}
            how |= {"qk_norm": True, "eps": self.model.norm_eps, "norm_offset": self.model.block.norm_offset}
        fields = attention.fields(kernel, batched=batched, indirect=not batched, **self._in_pages(), **how)
        self.op(kernel, role, given, {"rows": self.rows} | self._paged(), **fields)

    @property
    def _has_many_keys(self) -> bool:
        """Whether the sequences have many keys a position together."""
        return self.rows * self.model.kv_width >= MANY_KEYS

    def _in_pages(self) -> dict[str, Any]:
        """The fields of kernels on a cache in pages."""
        return {"page_size": self.page_size, "page_layout": self.page_layout} if self.page_size else {}

    def _paged(self) -> dict[str, int]:
        """The capacity that a cache in pages has."""
        return {"pages": self.pages} if self.page_size else {}

    def _attend(self, attention: Attention, q: Ref, out: str) -> None:
        caches = self._caches(attention)
        given: dict[str, str | Ref] = {"q": q, "out": out}
        how: dict[str, Any] = {"indirect": True}
        kernel, sizes = "incremental_attention", {}
        if self.step == "prefill" and self._is_few(attention):
            lengths = self.tensor("query_lengths", "input", (self.rows,), s32)
            given, sizes = given | caches | {"seq_lens": lengths}, {"batch": self.rows}
            how = {"batched": True, "one_cache": True, "programmatic": False}
        elif self.step == "prefill":
            kernel, sizes = "multi_head_attention", {"n_tokens": self.rows}
            given |= {name.removesuffix("_cache"): cache for name, cache in caches.items()}
            given |= {"q_len": self.tensor("q_len", "input", (1,), s32), "kv_len": self._length()}
            how |= self._prompt_fields(attention)
        elif self.step == "batch":
            how = {"batched": True, "batch_invariant": self.batch_invariant, **self._in_pages()}
            if self.is_packed(out):
                how["halves"] = bf16_layout.DIGITS[self._rounding]
            if self.is_packed(out) and not self.is_in_digits(out):
                how["tile_tokens"] = self.tensors[out].shape[-2]
            elif self.is_packed(out):
                how["sums"] = self.has_sums(self._kinds("o_proj"))
            sizes = {"batch": self.rows} | self._paged()
            given |= caches | {"seq_lens": self._length()}
        else:
            given |= caches | {"seq_len": self._length()}
        self.op(kernel, "attention", given, sizes, **attention.fields(kernel, **how))

    def _is_few(self, attention: Attention) -> bool:
        """Whether each row of a prompt's step reads the cache by itself."""
        few = self.rows <= FEWEST or self.rows * self.model.kv_width <= FEW_ELEMENTS
        return few and self.rows <= FEW_QUERIES[attention.q_dtype.bits]

    def _prompt_fields(self, attention: Attention) -> dict[str, Any]:
        """Whether CTAs share a prompt's keys, and whether those of 8 bits become 16-bit ones in scratch memory first:
        judged by the last of a full cache's steps, which takes longest. (Where CTAs could share keys and do not, as in
        the first steps, attention takes 14 % longer.)"""
        if not self.attention_scratch:
            return {}
        if attention not in self._prompt_fields_of:  # layers have the same
            spec = attention.spec("multi_head_attention", indirect=True)
            assert isinstance(spec, MultiHeadAttention)
            fastest = spec.fastest(parse_target(self.target), self.rows, self.model.shape.max_len)
            found = {"widened": fastest.widened, "split_keys": fastest.split_keys}
            self._prompt_fields_of[attention] = found
        return self._prompt_fields_of[attention]

    def _add(self, x: str | Ref, name: str, post_norm: str, weight: str, k: int, source: str | Ref) -> None:
        """Add a product to the residual stream, normed before where the family does that."""
        dim = self.model.dim
        if not self.is_packed(source):
            source, _ = self._input(name, source, "")
        bias = ""
        if name in self.model.biases:
            bias = self.vector(self.at(f"{name}.bias"), self._bias(name))
        if not post_norm:
            beside, fields = self._leave_normed(name, source)
            self._product(name, weight, dim, k, source, x, bias=bias, residual=True, beside=beside, **fields)
            return
        out = self.scratch(f"{name}.out", dim)
        self._product(name, weight, dim, k, source, out, bias=bias)
        self._rms(post_norm, post_norm, out, x, added=True)
