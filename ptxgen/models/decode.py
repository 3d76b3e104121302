"""A model and its weights' formats → the `Program` of a step. One pure function; the family's block says what is there.

Three kinds of step share tensors by name. "decode": one position of one sequence, which feeds its token back and counts
its position by itself. "batch": one position of each of `rows` sequences, at `positions`, over `lengths`; a position
below 0 takes no part. "prefill": `rows` positions of one sequence from `position` on, and the token after the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptxgen.dtypes import DType, bf16, dtype, f16, f32, s8, s32, u64
from ptxgen.errors import SpecError
from ptxgen.models.attention import Attention
from ptxgen.models.caches import CacheForm
from ptxgen.models.draft import Formats
from ptxgen.models.products import PRECISIONS, QKV, STACK, WIDE_TILE, Products
from ptxgen.models.program import Part, Program, Ref
from ptxgen.models.spec import ModelSpec
from ptxgen.scales import scale_groups
from ptxgen.spec.cache_fields import PAGE_LAYOUTS

CHOICES = ("greedy", "sample", "penalise")
MANY_KEYS = 8192  # elements of a position of all sequences: 8 of llama-3-8b, 32 of TinyLlama 1.1B or Qwen2.5 1.5B
STEPS = ("decode", "batch", "prefill")


def step_program(
    model: ModelSpec,
    formats: Formats,
    step: str = "decode",
    *,
    rows: int = 1,
    kv_dtype: object = "f32",
    target: str = "sm_75",
    programmatic: bool = False,
    batch_invariant: bool = False,
    choice: str = "greedy",
    rings: int = 0,
    page_size: int = 0,
    pages: int = 0,
    precision: str = "exact",
    page_layout: str = "hnd",
) -> Program:
    """The step of a model. `formats`: of every matrix by its file's name, or one for all. `programmatic`: launches may
    overlap where a kernel and the `target` can. `batch_invariant`: rows of a batch have the same bits whatever the
    others are, and with exact precision however many there are. `choice` of the token: "greedy" the likeliest,
    "sample" by the rows' settings, "penalise" by the sequences' own tokens, too. `page_size`: the cache of a batch lies
    in so many `pages` of so many positions, and `page_table` says which are whose; `page_layout` is the order of their
    axes. `rings`: layers with a window keep rings with room for appends of up to so many rows. `precision` of several
    rows: "exact" as f32 is; where the target has wgmma "fast" rounds them to bf16 before each product, "e4m3" to e4m3
    before products with weights in e4m3 (with a scale a row, or a row and 128 columns), and to bf16 before the others;
    up to eight rows before K-quants stay exact.

    Raises `SpecError` naming what is not covered.
    """
    if step not in STEPS:
        raise SpecError(f"step_program: step must be one of {', '.join(STEPS)} (got {step!r})")
    if rows < 1 or (step == "decode" and rows != 1):
        raise SpecError(f"step_program: rows must be 1 to decode, and at least 1 else (got {rows} for {step})")
    if choice not in CHOICES:
        raise SpecError(f"step_program: choice must be one of {', '.join(CHOICES)} (got {choice!r} for {step})")
    if precision not in PRECISIONS:
        raise SpecError(
            f"step_program: precision must be one of {', '.join(PRECISIONS)} (got {precision!r} for {step})"
        )
    if page_size and (step != "batch" or pages < 1 or rings):
        got = f"{page_size} with {pages} pages and {rings} rings for {step}"
        raise SpecError(f"step_program: page_size needs a batch with pages and without rings (got {got})")
    scheme = model.shape.kv_scheme
    if scheme is not None and dtype(kv_dtype).name == scheme.dtype:
        raise SpecError(
            f"kv_dtype: kernels of a whole model take no scales, and this model's kv_cache_scheme has one for each "
            f"{scheme.per}; bf16, f16 or f32 would work, or attention's kernels alone (got {scheme.dtype})"
        )
    made = _Step(
        model=model, step=step, rows=rows, formats=formats, kv_dtype=dtype(kv_dtype), target=target,
        programmatic=programmatic, batch_invariant=batch_invariant and step == "batch", choice=choice, rings=rings,
        page_size=page_size, pages=pages, page_layout=page_layout, precision=precision,
    )  # fmt: skip
    made.make()
    return made.program()


@dataclass(kw_only=True)
class _Step(Products):
    """A step of `model`, one part of it a method."""

    step: str
    kv_dtype: DType
    choice: str
    rings: int
    page_size: int
    pages: int
    page_layout: str

    # the model --------------------------------------------------------------------------------------------------------
    def make(self) -> None:
        """Say every op of the step, in order."""
        model, rows = self.model, self.rows
        vocab, dim = model.shape.vocab, model.dim
        x = self.scratch("x", dim)
        tokens = self.tensor("prompt", "input", (rows,), s32) if self.step == "prefill" else self._tokens()
        table = self.matrix("embed_tokens", [Part("embed_tokens", vocab)], dim)
        kind = self.tensors[table].format
        given = {"tokens": tokens, "table": table, "out": x}
        fields = {"vocab": vocab, "dim": dim, "weights": kind, "scale": model.embedding_scale}
        self.op("embedding", "embed_tokens", given, {"rows": rows}, **fields)
        for self.layer in range(model.shape.n_layers):
            self._attention(x)
            self._mlp(x)
        self.layer = -1
        self._head(x)

    def _tokens(self) -> str:
        """The tokens that a step reads, and leaves for the next one."""
        return self.tensor("tokens", "state", (1 if self.step == "prefill" else self.rows,), s32)

    def _head(self, x: str) -> None:
        """Logits of the rows that count, and their likeliest tokens."""
        model = self.model
        vocab, dim = model.shape.vocab, model.dim
        rows = 1 if self.step == "prefill" else self.rows
        source: str | Ref = Ref(x, (self.rows - 1) * dim * f32.bytes) if self.step == "prefill" else x
        norm = "norm"
        if not self.is_token(rows):
            kind = self.format_of("embed_tokens" if model.tied else "lm_head")
            source, norm = self._input("lm_head", x, dim, "norm", [kind], vocab)
        name = "embed_tokens" if model.tied else "lm_head"
        weight = self.matrix(name, [Part(name, vocab)], dim)
        logits = self.tensor("logits", "output", (rows, vocab))
        plain = not model.soft_cap and not model.head_bias
        if rows == 1 and self.choice == "greedy" and plain and self.step != "batch":
            self._next_token(source, weight, logits)
            return
        bias = self.vector("lm_head.bias", Part("lm_head.bias", vocab)) if model.head_bias else ""
        self._product("lm_head", weight, vocab, dim, source, logits, norm=norm, bias=bias, rows=rows)
        if model.soft_cap:
            self.op("soft_cap", "soft_cap", {"x": logits}, {"rows": rows}, dim=vocab, cap=model.soft_cap)
        self._choose(logits, rows)
        remembers = self.choice == "penalise" and self.step != "prefill"
        if self.step == "decode" or remembers:
            (position,) = self._position().values()
            given = {"position": position, "length": self._length()}
            fields = {"max_len": model.shape.max_len}
            if remembers:
                given |= {"tokens": self._tokens(), "history": self._history()}
                fields["history"] = model.shape.max_len
            self.op("advance", "advance", given, {"rows": rows}, **fields)

    def _next_token(self, x: str | Ref, weight: str, logits: str) -> None:
        """Logits, their likeliest token, and in a decode step the next position: one launch."""
        model = self.model
        given = {"x": x, "weight": weight, "norm_weight": self._norm_weight("norm"), "out": logits}
        given |= {"token": self._tokens()}
        fields = {"n": model.shape.vocab, "k": model.dim, "weights": self.tensors[weight].format, **self._norm_fields()}
        if self.step == "decode":
            given |= {**self._position(), "length": self._length()}
            fields["max_len"] = model.shape.max_len
        self.op("next_token", "lm_head", given, {}, **fields)

    def _choose(self, logits: str, rows: int) -> None:
        """The token of every row. A draw is counted by the length of the sequence, prompt and all."""
        vocab, sizes = self.model.shape.vocab, {"rows": rows}
        if self.choice == "greedy":
            self.op("arg_max", "choose", {"x": logits, "out": self._tokens()}, sizes, n=vocab, dtype="f32")
            return
        kinds = {"temperature": f32, "top_k": s32, "top_p": f32, "min_p": f32, "seed": u64}
        if self.choice == "penalise":
            kinds["penalty"] = f32
        given = {name: self.tensor(f"sampling.{name}", "input", (rows,), kind) for name, kind in kinds.items()}
        given |= {"logits": logits, "token": self._tokens(), "counter": self._length()}
        fields = {"vocab": vocab}
        if self.choice == "penalise":
            given |= {"history": self._history(), "history_len": self._length()}
            fields["history"] = self.model.shape.max_len
        self.op("sample", "choose", given, sizes, **fields)

    def _history(self) -> str:
        """The tokens of the sequences, by position."""
        rows = self.rows if self.step == "batch" else 1
        return self.tensor("history", "state", (rows, self.model.shape.max_len), s32)

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

    def _attention(self, x: str) -> None:
        model = self.model
        kind = model.layer(self.layer)
        ring = CacheForm(rings=self.rings).ring(model.shape, kind)
        style = "norm" if self._pairs() else model.rope_style
        attention = Attention.of(model.shape, kind, f32, self.kv_dtype, style=style, precise=True, ring=ring)
        if self._fuses(attention):
            q = self._qkv_append(x, attention)
        elif self._stacks_rows(attention):
            q = self._append_stacked(x, attention)
        else:
            q, k, v = self._qkv(x)
            self._append(attention, {"k": k, "v": v} | ({"q": q} if attention.rope else {}))
        attends = replace(attention, q_dtype=self.tensors[q.tensor].dtype)
        out = self.tensor(self.at("attention.out"), "scratch", (self.rows, model.q_width), attends.q_dtype)
        self._attend(attends, q, out)
        weight = self.matrix(self.at("o_proj"), [self._part("o_proj")], model.q_width)
        self._add(x, "o_proj", model.block.attention_post_norm, weight, model.q_width, out)

    def _fuses(self, attention: Attention) -> bool:
        """Whether one launch makes q, k and v, rotates and appends."""
        alone = self.rows == 1 and self.step != "batch" and not self.model.block.qk_norm
        rotates = attention.rope is not None and attention.style == "norm"
        fits = attention.head_dim % STACK == 0 and self.kv_dtype != s8
        return alone and rotates and fits and self._stacks()[0] != QKV[:1] and len(self._biased()) in (0, len(QKV))

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
        tiled = self.step == "batch" or self.digits(kinds, dim) or self.integers(kinds, dim) or self.packs(kinds, dim)
        one = tiled and attention.rope is not None and not self.model.block.qk_norm
        return one and self._stacks()[0] != QKV[:1]

    def _append_stacked(self, x: str, attention: Attention) -> Ref:
        """The queries of several rows, whose products give rows of q, k and v, or of q and k."""
        model, stacks = self.model, self._stacks()
        width = model.q_width + 2 * model.kv_width
        source, norm = self._input("qkv", x, model.dim, model.block.attention_norm, self._kinds(*QKV), width)
        rows = [next(self._products_of(names, source, norm, whole_rows=True)).tensor for names in stacks]
        stacked = "".join(name[0] for name in stacks[0])
        given: dict[str, str | Ref] = dict(zip((stacked, "v"), rows, strict=False))
        q_dtype = self._attended()
        q = given["q_out"] = self.tensor(self.at("q.out"), "scratch", (self.rows, model.q_width), q_dtype)
        self._append(attention, given, stacked=stacked, in_place=False, out_dtype=q_dtype.name)
        return Ref(q)

    def _attended(self) -> DType:
        """The type of a prompt's queries and of what attention makes of them: the cache's, where that is fast."""
        kinds, width = self._kinds("o_proj"), self.model.q_width
        packs = self.packs(kinds, width) and not (self.digits(kinds, width) or self.integers(kinds, width))
        narrow = self.precision != "exact" and self.step == "prefill" and packs
        return self.kv_dtype if narrow and self.kv_dtype in (f16, bf16) else f32

    def _qkv(self, x: str) -> list[Ref]:
        """Queries, keys and values of a layer, normed where the family norms them."""
        model, shape = self.model, self.model.shape
        width = model.q_width + 2 * model.kv_width
        source, norm = self._input("qkv", x, model.dim, model.block.attention_norm, self._kinds(*QKV), width)
        found = [ref for names in self._stacks() for ref in self._products_of(names, source, norm)]
        if model.block.qk_norm:
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
        if batched and self.rows * self.model.kv_width >= MANY_KEYS:
            how["programmatic"] = False
        role, kernel = attention.append
        given = {**rows, **self._caches(attention), **self._position()}
        fields = attention.fields(kernel, batched=batched, indirect=not batched, **self._in_pages(), **how)
        self.op(kernel, role, given, {"rows": self.rows} | self._paged(), **fields)

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
        if self.step == "prefill":
            kernel, sizes = "multi_head_attention", {"n_tokens": self.rows}
            given |= {name.removesuffix("_cache"): cache for name, cache in caches.items()}
            given |= {"q_len": self.tensor("q_len", "input", (1,), s32), "kv_len": self._length()}
        elif self.step == "batch":
            how = {"batched": True, "batch_invariant": self.batch_invariant, **self._in_pages()}
            sizes = {"batch": self.rows} | self._paged()
            given |= caches | {"seq_lens": self._length()}
        else:
            given |= caches | {"seq_len": self._length()}
        self.op(kernel, "attention", given, sizes, **attention.fields(kernel, **how))

    def _mlp(self, x: str) -> None:
        model = self.model
        gated = not {"gate_proj", "up_proj"} & set(model.biases)
        kinds = self._kinds("gate_proj", "up_proj", "down_proj")
        packs = self.packs(kinds[:2], model.dim) and self.packs(kinds[2:], model.hidden)
        packs &= not (self.digits(kinds[:2], model.dim) or self.digits(kinds[2:], model.hidden))
        packs &= not (self.integers(kinds[:2], model.dim) or self.integers(kinds[2:], model.hidden))
        scaled = self.scale_group(kinds[:2], model.dim), self.scale_group(kinds[2:], model.hidden)
        if gated and packs and model.hidden % WIDE_TILE == 0 and scaled == (None, None):
            out = self._packed_gate(x, kinds)
        else:
            width = model.hidden if gated else 2 * model.hidden
            fields = {"gated": True, "activation": model.activation} if gated else {}
            source, norm = self._input("gate_up", x, model.dim, model.block.mlp_norm, kinds[:2], width, **fields)
            if gated and packs and scaled != (None, None) and model.hidden % STACK == 0:
                out = self.tensor(self.at("gate_up.out"), "scratch", (self.rows, model.hidden), bf16)
                self._gate(source, norm, out, out_dtype=bf16)
            else:
                out = self.scratch("gate_up.out", model.hidden)
                (self._gate if gated else self._biased_gate)(source, norm, out)
        weight = self.matrix(self.at("down_proj"), [self._part("down_proj")], model.hidden)
        self._add(x, "down_proj", model.block.mlp_post_norm, weight, model.hidden, out)

    def _gate(self, x: str, norm: str, out: str, **more: Any) -> None:
        """activation(gate · x) · (up · x)."""
        model = self.model
        weight = self.matrix(self.at("gate_up"), self._gate_parts(), model.dim, gated=True)
        fields: dict[str, Any] = {"activation": model.activation, "gated": True, **more}
        self._product("gate_up", weight, model.hidden, model.dim, x, out, norm=norm, **fields)

    def _packed_gate(self, x: str, kinds: Sequence[str]) -> str:
        """The same for several rows, which the product leaves as the next one reads them."""
        model = self.model
        fields = {"gated": True, "activation": model.activation, "packed_out": True}
        tokens = self._tile_tokens(kinds[:1], model.hidden, model.dim, **fields)
        source = self._packed("gate_up", x, model.dim, model.block.mlp_norm, kinds[:2], tokens)
        out = self._packed_rows("down_proj", model.hidden, tokens)
        self._gate(source, "", out, packed_out=True)
        return out

    def _gate_parts(self) -> list[Part]:
        return [self._part(name) for name in ("gate_proj", "up_proj")]

    def _biased_gate(self, x: str, norm: str, out: str) -> None:
        """Gate and up with their biases below one another, and then the activation."""
        hidden, dim = self.model.hidden, self.model.dim
        if hidden % STACK:
            raise SpecError(f"step_program: with mlp_bias hidden must be a multiple of {STACK} (got {hidden})")
        weight = self.matrix(self.at("gate_up"), self._gate_parts(), dim)
        bias = self.vector(self.at("gate_up.bias"), *map(self._bias, ("gate_proj", "up_proj")))
        both = self.scratch("gate_up.both", 2 * hidden)
        self._product("gate_up", weight, 2 * hidden, dim, x, both, norm=norm, bias=bias)
        given, fields = {"x": both, "out": out}, {"dim": hidden, "kind": self.model.activation, "gated": True}
        self.op("activation", "activation", given, {"rows": self.rows}, **fields)

    def _add(self, x: str, name: str, post_norm: str, weight: str, k: int, source: str) -> None:
        """Add a product to the residual stream, normed before where the family does that."""
        dim = self.model.dim
        if not self.is_packed(source):
            source, _ = self._input(name, source, k, "", self._kinds(name), dim)
        bias = ""
        if name in self.model.biases:
            bias = self.vector(self.at(f"{name}.bias"), self._bias(name))
        if not post_norm:
            self._product(name, weight, dim, k, source, x, bias=bias, residual=True)
            return
        out, normed = self.scratch(f"{name}.out", dim), self.scratch(f"{post_norm}.out", dim)
        self._product(name, weight, dim, k, source, out, bias=bias)
        self._rms(post_norm, post_norm, out, normed)
        self.op("residual_add", f"{name}.add", {"x": normed, "residual": x}, {"rows": self.rows}, dim=dim)
