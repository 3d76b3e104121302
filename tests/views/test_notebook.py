"""What a notebook and a prompt show of kernels, caches and texts."""

from __future__ import annotations

import html
import re

from pygments.token import Comment, Error, Keyword, Name

from ptxgen import generate
from ptxgen.kernels import ArgMax
from ptxgen.runtime import BatchedKvCache, Executor, KvCache, open_device
from ptxgen.views.highlight import PtxLexer, ptx_as_html
from tests.support.marks import needs_assembler


def test_every_character_of_a_text_is_in_the_listing() -> None:
    ptx = generate(ArgMax(n=100), "sm_80")
    listing = ptx_as_html(ptx).partition("<details>")[2]
    shown = html.unescape(re.sub(r"<[^>]*>", "", listing.partition("</summary>")[2]))
    assert shown.split() == ptx.text.split()


def test_the_parts_of_a_line_have_their_kinds() -> None:
    kinds = [(str(text), kind) for kind, text in PtxLexer().get_tokens("@%p bra $loop; // again\n") if text.strip()]
    assert ("@%p", Name.Decorator) in kinds
    assert ("bra", Keyword) in kinds
    assert ("$loop", Name.Label) in kinds
    assert ("// again", Comment.Single) in kinds
    assert all(kind is not Error for _, kind in kinds)


@needs_assembler
def test_the_table_has_the_resources() -> None:
    assert re.search(r"\d+ registers, 0 bytes spilled", ptx_as_html(generate(ArgMax(n=100), "sm_80")))


def test_what_things_print() -> None:
    device = open_device("cpu")
    cache = KvCache(device, 2, 4, 2, 64, 32, "f16")
    executor = Executor(device, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=64, max_len=32)
    assert device.load(ArgMax(n=100)).spec == ArgMax(n=100)
    assert repr(cache) == "KvCache(2 × [2, 32, 64] f16, lengths 0…0, cpu)"
    assert repr(BatchedKvCache(cache, 3)) == "BatchedKvCache(3 sequences × 2 × [2, 32, 64] f16, cpu)"
    assert repr(executor).startswith("Executor(2 layers, heads 4/2/64, f32, KvCache(")
    assert repr(generate(ArgMax(n=100), "sm_80")).startswith("<Ptx ArgMax(n=100")
