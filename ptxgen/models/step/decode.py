"""A model and its weights' formats → the `Program` of a step. One pure function; the family's block says what is there.

Three kinds of step share tensors by name. "decode": one position of one sequence; the step feeds its token back and
advances its position by itself. "batch": one position of each of `rows` sequences, at `positions`, over `lengths`; a
sequence with a position below 0 is skipped. "prefill": `rows` positions of one sequence from `position` on, and the
token after the last; after the last layer's attention only the last row is computed. Rows for positions below `n_kept`,
or below 0, count for nothing: a shorter prompt is the last of the rows. Inputs: `prompt`, `n_kept`, `position`, and of
many rows `q_len`, which is `rows`, and `kv_len`, the positions at the end; of few rows `query_lengths` in their place:
the row's position + 1 (`kv_len` too, where a token is drawn). A prefill that others follow (`choice` "none")
only computes keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ptxgen.dtypes import bf16, dtype, f32, s32, u64
from ptxgen.errors import SpecError
from ptxgen.integers import as_index
from ptxgen.models.program import Part, Program, Ref
from ptxgen.models.spec import MLP, ModelSpec
from ptxgen.models.step.attention import AttentionOfStep
from ptxgen.models.step.draft import Formats
from ptxgen.models.step.row_forms import PRECISIONS, STACK

CHOICES = ("greedy", "sample", "penalise", "none")
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
    attention_scratch: bool = True,
) -> Program:
    """The step of a model. `formats`: of every matrix by its file's name, or one for all. `programmatic`: launches may
    overlap if the kernel and the `target` support it. `batch_invariant`: rows of a batch have the same bits whatever
    the other rows are, and with exact precision however many there are. `choice` of the token: "greedy": the
    likeliest; "sample": drawn by the rows' settings; "penalise": also with penalties for the sequences' own tokens;
    "none": for a prompt's rows that others follow: the step ends with the last layer's keys and values. `page_size`:
    the cache of a batch has `pages` pages of so many positions, which `page_table` assigns to sequences; `page_layout`
    is the order of their axes. `rings`: layers with a window keep rings with room for appends of up to so many rows.
    `precision` of several rows: "exact": as f32. If the target has wgmma, "fast" rounds activations to bf16 before each
    product; "e4m3" rounds them to e4m3 before products with e4m3 weights (with a scale a row, or a row and 128 columns;
    not with two to eight sequences on sm_90), and to bf16 before other products. Up to eight rows of a prompt stay
    exact with K-quants. `attention_scratch`: a prompt's attention may use scratch memory, if that is faster: for what
    CTAs leave that share keys, or over a cache of 8 bits for a layer's keys and values in 16 bits.

    Raises `SpecError` naming what is not covered.
    """
    for wrong in _mistakes(step, rows, choice, precision, page_size, pages, rings):
        raise SpecError(f"step_program: {wrong}")
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
        attention_scratch=attention_scratch,
    )  # fmt: skip
    made.make()
    return made.program()


def _mistakes(
    step: str, rows: int, choice: str, precision: str, page_size: int, pages: int, rings: int
) -> Iterator[str]:
    """What no step has, whatever the model."""
    if step not in STEPS:
        yield f"step must be one of {', '.join(STEPS)} (got {step!r})"
    if (number := as_index(rows)) is None or number < 1 or (step == "decode" and number != 1):
        yield f"rows must be 1 to decode, and at least 1 else (got {rows} for {step})"
    if choice not in CHOICES:
        yield f"choice must be one of {', '.join(CHOICES)} (got {choice!r} for {step})"
    if choice == "none" and step != "prefill":
        yield f"choice 'none' is of a prompt's rows (got step={step!r}; nearest: 'greedy')"
    if precision not in PRECISIONS:
        yield f"precision must be one of {', '.join(PRECISIONS)} (got {precision!r} for {step})"
    if page_size and (step != "batch" or pages < 1 or rings):
        got = f"{page_size} with {pages} pages and {rings} rings for {step}"
        yield f"page_size needs a batch with pages and without rings (got {got})"


@dataclass(kw_only=True)
class _Step(AttentionOfStep):
    """A step of `model`, one part of it a method."""

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
        attended: str | Ref
        stream: str | Ref = x
        for self.layer in range(model.shape.n_layers):
            queries = self._queries(x)
            if self._ends_prompt and self.choice == "none":
                return
            made = attended = self._attention(*queries)
            if self._ends_prompt:
                attended, stream, self.rows = self._last_row(made), self._last_row(x), 1
            self._attention_out(stream, attended)
            self._mlp(stream)
        self.layer = -1
        self._head(stream)

    def _tokens(self) -> str:
        """The tokens that a step reads, and leaves for the next one."""
        return self.tensor("tokens", "state", (self.rows,), s32)

    def _head(self, source: str | Ref) -> None:
        """Logits of the rows that count, and their likeliest tokens."""
        model = self.model
        vocab, dim, rows = model.shape.vocab, model.dim, self.rows
        norm = "norm"
        if not self.is_token(rows):
            source, norm = self._input("lm_head", source, norm)
        weight = self.matrix(model.head, [Part(model.head, vocab)], dim)
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

    def _mlp(self, x: str | Ref) -> None:
        model = self.model
        kinds = self._kinds(*MLP)
        form = self.gate_form(kinds)
        gated = form == "gated"
        packs = self.packs_gate(kinds) and not self._gates_halves(kinds)
        scaled = self.scale_group(kinds[:2], model.dim), self.scale_group(kinds[2:], model.hidden)
        if packs and self.gives_tiles(kinds):
            assert isinstance(x, str), "several rows are a tensor of their own"
            out = self._packed_gate(x, kinds)
        else:
            source, norm = self._input("gate_up", x, model.block.mlp_norm)
            if gated and self._gives_halves(kinds):
                out = self._halves_of("down_proj", model.hidden, kinds[2:])
                self._gate(source, norm, out, packed_out=True, **self._for_others(kinds[:2], kinds[2:]))
            elif gated and packs and scaled != (None, None) and model.hidden % STACK == 0:
                out = self.tensor(self.at("gate_up.out"), "scratch", (self.rows, model.hidden), bf16)
                self._gate(source, norm, out, out_dtype=bf16)
            else:
                out = self.scratch("gate_up.out", model.hidden)
                gates = {"gated": self._gate, "stacked": self._biased_gate, "apart": self._gate_apart}
                gates[form](source, norm, out)
        weight = self.matrix(self.at("down_proj"), [self._part("down_proj")], model.hidden)
        self._add(x, "down_proj", model.block.mlp_post_norm, weight, model.hidden, out)

    def _gates_halves(self, kinds: Sequence[str]) -> bool:
        """Whether the product of gate and up reads bf16 digits."""
        norm, weights = self.model.block.mlp_norm, 2 * self.model.hidden * self.model.dim
        left = self.normed.get(self.at(norm))
        if left:
            return self.is_in_digits(left)
        return self.packs_halves(kinds[:2], norm) and self.halves(kinds[:2], weights, self.model.dim)

    def _gives_halves(self, kinds: Sequence[str]) -> bool:
        """Whether it leaves its results so for that of down."""
        leaves = self.leaves_for(kinds[:2], kinds[2:]) and self._gates_halves(kinds)
        return leaves and self.reads_halves("down_proj", self.model.hidden)

    def _gate(self, x: str | Ref, norm: str, out: str, **more: Any) -> None:
        """activation(gate · x) · (up · x)."""
        model = self.model
        weight = self.matrix(self.at("gate_up"), self._gate_parts(), model.dim, gated=True)
        fields: dict[str, Any] = {"activation": model.activation, "gated": True, **more}
        self._product("gate_up", weight, model.hidden, model.dim, x, out, norm=norm, **fields)

    def _packed_gate(self, x: str, kinds: Sequence[str]) -> str:
        """The same for several rows, which the product leaves as the next one reads them."""
        model, norm = self.model, self.model.block.mlp_norm
        tokens = self._tokens_of("gate_up")
        left = self.normed.get(self.at(norm))
        source = left or self._packed("gate_up", x, model.dim, norm, kinds[:2], tokens)
        out = self._packed_rows("down_proj", model.hidden, tokens)
        self._gate(source, norm if left else "", out, packed_out=True)
        return out

    def _gate_parts(self) -> list[Part]:
        return [self._part(name) for name in ("gate_proj", "up_proj")]

    def _biased_gate(self, x: str | Ref, norm: str, out: str) -> None:
        """Gate and up with their biases below one another, and then the activation."""
        hidden, dim = self.model.hidden, self.model.dim
        weight = self.matrix(self.at("gate_up"), self._gate_parts(), dim)
        bias = self.vector(self.at("gate_up.bias"), *map(self._bias, ("gate_proj", "up_proj")))
        both = self.scratch("gate_up.both", 2 * hidden)
        self._product("gate_up", weight, 2 * hidden, dim, x, both, norm=norm, bias=bias)
        given, fields = {"x": both, "out": out}, {"dim": hidden, "kind": self.model.activation, "gated": True}
        self.op("activation", "activation", given, {"rows": self.rows}, **fields)

    def _gate_apart(self, x: str | Ref, norm: str, out: str) -> None:
        """The same of matrices that cannot be one: of two formats, or not of whole records with biases."""
        hidden, dim = self.model.hidden, self.model.dim
        given: dict[str, str | Ref] = {"out": out}
        for name, param in (("gate_proj", "x"), ("up_proj", "up")):
            given[param] = self.scratch(f"{name}.out", hidden)
            weight = self.matrix(self.at(name), [self._part(name)], dim)
            bias = self.vector(self.at(f"{name}.bias"), self._bias(name)) if name in self.model.biases else ""
            self._product(name, weight, hidden, dim, x, given[param], norm=norm, bias=bias)
        fields = {"dim": hidden, "kind": self.model.activation, "gated": True, "apart": True}
        self.op("activation", "activation", given, {"rows": self.rows}, **fields)
