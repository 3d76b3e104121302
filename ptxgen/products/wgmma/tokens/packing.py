"""A row of x into its tile: loads, the norm's sum of squares, and where a thread's columns go."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.dtypes import DType, bf16, e4m3, f32
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_cta
from ptxgen.kernel import KernelType, field, kernel_base
from ptxgen.products.wgmma.tokens import layout

OWN = 4  # neighbouring columns of a thread
MOST_THREADS = 256
MOST_OF_ROW = 896  # where they are to hold a row, of 72 registers each
TURN = 64  # threads whose columns are whole blocks of every type
FLIGHT = 4  # loads of a thread in a pass


@kernel_base
class PackedRows(KernelType):
    """Rows that become tiles: the fields of PackTokens, and what follows from them."""

    dim: int = field(doc="columns of x")
    tokens: int = field(default=32, draws=(8, 16, 64, 256))
    dtype: DType = bf16
    src_dtype: DType = field(default=f32, doc="element type of x")
    precision: str = "exact"
    norm: str = ""
    eps: float = field(default=1e-6, silent="beside squares about 1 it is less than a comparison tells")
    norm_offset: float = 0.0
    indirect: bool = field(default=False, doc="n_rows is read from device memory")
    programmatic: bool = False
    group: int = field(
        default=0, later=True, draws=layout.SCALE_GROUPS, doc="columns that share a scale in e4m3; 0: a row's"
    )

    by_row: bool = field(default=False, later=True, doc="f16: out is in units of its rows, with their sums")

    @property
    def scaled(self) -> bool:
        """Whether out has scales."""
        return self.dtype == e4m3 or self.by_row

    @property
    def surveys(self) -> bool:
        """Whether a row is read before it is packed: for its norm, or its largest element."""
        return bool(self.norm) or (self.scaled and not self.group)

    @property
    def digits(self) -> int:
        """Numbers of dtype that an element of x becomes."""
        return (layout.DIGITS_BY_ROW if self.by_row else layout.DIGITS)[self.precision]

    @property
    def columns(self) -> int:
        """Columns of out: those of x in whole blocks."""
        return layout.blocks(self.dim) * layout.COLUMNS

    @property
    def threads(self) -> int:
        """Threads of a row; a multiple of a block's, so that a thread stays at its place in a block."""
        few = min(MOST_THREADS, self.columns // OWN)
        if not self.scaled or self.group:
            return few
        # a row whose scale is sought first is read once where all of it is in registers
        whole = -(-self.columns // (OWN * FLIGHT * TURN)) * TURN
        return max(few, min(MOST_OF_ROW, whole))

    @property
    def flight(self) -> int:
        """Loads of a thread in a pass."""
        return min(FLIGHT, -(-self.columns // (OWN * self.threads)))

    @property
    def reach(self) -> int:
        """Columns of a pass."""
        return self.flight * OWN * self.threads

    @property
    def held(self) -> bool:
        """Whether a row that is read before it is packed stays in registers."""
        return self.surveys and self.columns <= self.reach


class Packing:
    """Fragments `begin` and `pack_pass`, with a norm also `begin_squares`, `squares_pass` and `root`."""

    pieces = "columns 4t and 4t + 1 of a chunk are in its first piece, 4t + 2 and 4t + 3 in the second"

    def __init__(self, b: Builder, spec: PackedRows) -> None:
        self.b, self.spec = b, spec
        self.values = b.array("value", "f32", OWN * spec.flight)
        self.words = convert.word_array(b, "word", self.values, spec.src_dtype)
        self.gains: RegArray | None = None

    def build(self, thread: Reg, row: Reg, tile: Reg, token: Reg, exists: Reg) -> None:
        """All fragments. The CTA has `row`, which is `token` of `tile`; `exists`: x has that row."""
        with self.b.fragment("begin", "where the thread reads and writes"):
            self._begin(thread, row, tile, token)
        if self.spec.surveys:
            self._survey(thread, exists)
        else:
            self.b.without("begin_squares", "squares_pass", "root")
        self._pack(exists)

    def _begin(self, thread: Reg, row: Reg, tile: Reg, token: Reg) -> None:
        b, spec = self.b, self.spec
        own = self.own = b.op("mul.lo.u32", "own_column", thread, OWN)
        self.column = b.op("mov.u32", "column", own)
        self.source = b.op("mad.wide.u32", "source", row, spec.src_dtype.bytes * spec.dim, b.ld_param("x"))
        if spec.norm:
            self.gain_source = b.ld_param("norm_weight")
        of_tile = layout.blocks(spec.dim, spec.dtype) * spec.digits * spec.tokens * layout.ROW_BYTES
        out = self.out = b.op("mad.wide.u32", "target", tile, of_tile, b.ld_param("out"))
        b.op("mad.wide.u32", out, token, layout.ROW_BYTES, out)
        block = b.op("shr.u32", "block", own, layout.columns(spec.dtype).bit_length() - 1)
        b.op("mad.wide.u32", out, block, spec.digits * spec.tokens * layout.ROW_BYTES, out)
        self._find_place(tile, token, own)

    def _find_place(self, tile: Reg, token: Reg, own: Reg) -> None:
        """Where the thread's columns go in a row of a block."""
        b, out = self.b, self.out
        b.note(self.pieces)
        piece = b.op("bfe.u32", "piece", own, 4, 2)
        b.op("shl.b32", piece, piece, 1)
        turned = b.op("and.b32", "turned", token, layout.GROUP - 1)
        b.op("xor.b32", piece, piece, turned)
        place = b.op("shl.b32", "place", piece, 4)
        lane = b.op("and.b32", "lane_place", own, 12)
        b.op("add.u32", place, place, lane)
        b.note("of two lanes the first stores what both have for its piece, the second what they have for the other")
        odd = b.op("and.b32", "odd_place", own, OWN)
        self.second = b.op("setp.ne.u32", "is_second", odd, 0)
        other = b.op("xor.b32", "other_place", place, 16)
        b.op("sub.u32", other, other, OWN)
        b.op("selp.b32", place, other, place, self.second)
        b.op("add.u64", out, out, b.op("cvt.u64.u32", "wide_place", place))

    def _load(self, values: tuple[Reg, ...], base: Reg, exists: Reg | None) -> None:
        """The thread's columns of a pass, zeros past the last."""
        b, spec = self.b, self.spec
        width = next(v for v in (4, 2, 1) if spec.dim % v == 0)
        at = b.op("mad.wide.u32", convert.scratch(b, "load_at", "u64"), self.column, 4, base)
        inside = convert.scratch(b, "inside", "pred")
        convert.clear(b, values)
        for i in range(spec.flight):
            for j in range(0, OWN, width):
                offset = i * OWN * spec.threads + j
                if offset >= spec.dim:
                    continue
                if exists is None:
                    b.op("setp.lt.u32", inside, self.column, spec.dim - offset)
                else:
                    b.op("setp.lt.and.u32", inside, self.column, spec.dim - offset, exists)
                words = values[OWN * i + j : OWN * i + j + width]
                convert.load_words(b, words, at, 4 * offset, pred=inside)

    def _load_row(self, exists: Reg) -> None:
        """The same of x, widened to f32."""
        b, spec = self.b, self.spec
        if self.words is self.values:
            self._load(self.values.regs, self.source, exists)
            return
        at = b.op("mad.wide.u32", convert.scratch(b, "load_at", "u64"), self.column, spec.src_dtype.bytes, self.source)
        inside, each = convert.scratch(b, "inside", "pred"), len(self.words) // spec.flight
        convert.clear(b, self.words)
        for i in range(spec.flight):
            offset = i * OWN * spec.threads
            b.op("setp.lt.and.u32", inside, self.column, max(0, spec.dim - offset), exists)
            words = self.words[each * i : each * (i + 1)]
            convert.load_words(b, words, at, spec.src_dtype.bytes * offset, pred=inside)
        convert.unpack(b, self.values, self.words, spec.src_dtype)

    def _survey(self, thread: Reg, exists: Reg) -> None:
        b, spec = self.b, self.spec
        total = b.reg("square_sum", "f32")
        with b.fragment("begin_squares"):
            b.op("mov.f32", total, 0.0)
        with b.fragment("squares_pass", "add up the squares of a pass"):
            self._load_row(exists)
            for value in self.values:
                b.op("fma.rn.f32", total, value, value, total)
            if spec.held:
                self._load_gains()
            b.op("add.u32", self.column, self.column, spec.reach)
            b.op("setp.lt.u32", "more_squares", self.column, spec.dim)
        over_cta(b, "squares", "add.f32", [total], thread, spec.threads // 32)
        with b.fragment("root", "1 / sqrt(mean + eps); back to the row's start"):
            self._find_root(total)
            b.op("mov.u32", self.column, self.own)

    def _find_root(self, total: Reg) -> None:
        """The factor of a norm, from the sum of squares."""
        b, spec = self.b, self.spec
        self.factor = b.op("fma.rn.f32", "factor", total, 1 / spec.dim, spec.eps)
        b.op("sqrt.rn.f32", self.factor, self.factor)
        b.op("rcp.rn.f32", self.factor, self.factor)

    def _pack(self, exists: Reg) -> None:
        b, spec, values = self.b, self.spec, self.values.regs
        if spec.norm and self.gains is None:
            self.gains = b.array("gain", "f32", len(values))
        self.digits = b.array("digit", "b32", OWN * spec.dtype.bytes // 4 * spec.digits)
        with b.fragment("pack_pass", "a pass of the row into its tile"):
            self._load_values(exists)
            there = b.reg("inside_tile", "pred")
            step = OWN * spec.threads // layout.columns(spec.dtype) * spec.digits * spec.tokens * layout.ROW_BYTES
            for i in range(spec.flight):
                b.op("setp.lt.u32", there, self.column, spec.columns - i * OWN * spec.threads)
                self._store(values[OWN * i : OWN * (i + 1)], there)
                self._advance(step)
            b.op("add.u32", self.column, self.column, spec.reach)
            b.op("setp.lt.u32", "more_columns", self.column, spec.columns)

    def _load_values(self, exists: Reg) -> None:
        """The columns of a pass, normed."""
        if not self.spec.held:
            self._load_row(exists)
        if self.spec.norm:
            if not self.spec.held:
                self._load_gains()
            self._apply_norm()

    def _load_gains(self) -> None:
        """The norm's weights of a pass."""
        b, spec = self.b, self.spec
        gains = self.gains = self.gains or b.array("gain", "f32", len(self.values))
        self._load(gains.regs, self.gain_source, None)
        if spec.norm_offset:
            for gain in gains:
                b.op("add.f32", gain, gain, spec.norm_offset)

    def _apply_norm(self) -> None:
        for value, gain in zip(self.values, self.gains or (), strict=True):
            self.b.op("mul.f32", value, value, self.factor)
            self.b.op("mul.f32", value, value, gain)

    def _store(self, own: Sequence[Reg], there: Reg) -> None:
        """Four columns."""
        b, spec, digits = self.b, self.spec, self.digits
        if spec.digits == 1:
            convert.pack(b, digits.regs, own, spec.dtype)
        else:
            convert.split_digits(b, own, [digits[2 * n : 2 * n + 2] for n in range(spec.digits)], spec.dtype)
        for n in range(spec.digits):
            first, second = self._exchange(*digits[2 * n : 2 * n + 2])
            b.op("st.global.v2.b32", self.out[n * spec.tokens * layout.ROW_BYTES], (first, second), pred=there)

    def _exchange(self, first: Reg, second: Reg) -> tuple[Reg, Reg]:
        """What this lane and its neighbour have for one piece: of each the `first` word, or the `second`. Eight bytes
        side by side, as pieces of four are halves of a sector."""
        b = self.b
        given, theirs = convert.scratch(b, "given_word", "b32"), convert.scratch(b, "their_word", "b32")
        b.op("selp.b32", given, first, second, self.second)
        b.op("shfl.sync.bfly.b32", theirs, given, 1, 31, 0xFFFFFFFF)
        low, high = convert.scratch(b, "low_word", "b32"), convert.scratch(b, "high_word", "b32")
        b.op("selp.b32", low, theirs, first, self.second)
        b.op("selp.b32", high, second, theirs, self.second)
        return low, high

    def _advance(self, step: int) -> None:
        """To the thread's next columns of the pass."""
        self.b.op("add.u64", self.out, self.out, step)
