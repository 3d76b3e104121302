"""The backend has what the recorded contract asks, and attends as NumPy does; never run in vLLM."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ptxgen.errors import SpecError
from tests.vllm.fake import RECORD, SHARED, VERSIONS, kv_cache, modules

torch = pytest.importorskip("torch", reason="torch is not installed")

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 4, 2, 32, 16, 12
OURS = {
    "AttentionBackend": "PtxgenAttentionBackend",
    "AttentionMetadataBuilder": "PtxgenMetadataBuilder",
    "AttentionImpl": "PtxgenAttentionImpl",
}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(version: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, module in modules(version).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "ptxgen.vllm.backend", raising=False)
    yield importlib.import_module("ptxgen.vllm.backend")
    sys.modules.pop("ptxgen.vllm.backend", None)


@pytest.mark.parametrize("theirs", OURS)
def test_contract(theirs: str, version: str, backend: Any) -> None:
    contract = RECORD[version]
    ours = getattr(backend, OURS[theirs])
    assert not ours.__abstractmethods__
    for name in contract["class_variables"].get(theirs, []):
        assert name in vars(ours), name
    for name, wanted in contract["parameters"][theirs].items():
        found = [p for p in inspect.signature(getattr(ours, name)).parameters if p != "self"]
        assert found[: len(wanted)] == wanted, name
    if theirs == "AttentionBackend":
        assert ours.get_impl_cls() is backend.PtxgenAttentionImpl
        assert ours.get_builder_cls() is backend.PtxgenMetadataBuilder


def test_what_it_can(backend: Any) -> None:
    ours = backend.PtxgenAttentionBackend
    assert ours.get_name() == "CUSTOM"
    assert ours.get_kv_cache_shape(BLOCKS, BLOCK, KV_HEADS, DIM) == (2, BLOCKS, BLOCK, KV_HEADS, DIM)
    assert [ours.supports_head_size(n) for n in (8, 80, 512, 12, 520, 0)] == [True, True, True, False, False, False]
    assert [ours.supports_compute_capability(c) for c in ((7, 0), (7, 5), (9, 0))] == [False, True, True]
    assert ours.supports_sliding_window()
    assert ours.supports_sink()
    assert ours.supports_batch_invariance()
    assert not ours.use_cascade_attention()
    with pytest.raises(SpecError, match=r"block_size: must be a multiple of 16 \(got 24\)"):
        ours.get_kv_cache_shape(BLOCKS, 24, KV_HEADS, DIM)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(alibi_slopes=[1.0]), "alibi_slopes"),
        (dict(attn_type="encoder"), "attn_type"),
        (dict(kv_cache_dtype="fp8"), "kv_cache_dtype"),
    ],
)
def test_what_it_cannot(options: dict[str, Any], said: str, backend: Any) -> None:
    with pytest.raises(SpecError, match=f"^{said}: "):
        backend.PtxgenAttentionImpl(HEADS, DIM, 0.2, KV_HEADS, **options)


def common(lengths: list[int], tokens: list[int], table: Any, padded: int = 0) -> Any:
    """A batch whose requests have so many keys, the last `tokens` of which are new; `padded`: slots of no request."""
    starts = torch.tensor([0, *tokens]).cumsum(0).int()
    slots = [
        int(table[r, p // BLOCK]) * BLOCK + p % BLOCK
        for r, (n, t) in enumerate(zip(lengths, tokens, strict=True))
        for p in range(n - t, n)
    ]
    values = dict(
        query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_reqs=len(lengths), num_actual_tokens=len(slots) + padded, max_query_len=max(tokens),
        max_seq_len=max(lengths), block_table_tensor=table, slot_mapping=torch.tensor(slots + [-1] * padded),
        causal=True,
    )  # fmt: skip
    assert sorted(values) == sorted(SHARED["common_metadata"])
    return SimpleNamespace(**values)


def expected(q: Any, k: Any, v: Any, window: int, cap: float, sinks: Any) -> Any:
    """One request: queries `[n, heads, dim]` at the end of keys `[m, kv_heads, dim]`."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1).double() for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * 0.2
    scores = torch.tanh(scores / cap) * cap if cap else scores
    query, key = torch.arange(len(k) - len(q), len(k))[:, None], torch.arange(len(k))
    hidden = (key > query) | ((key <= query - window) if window else (key < 0))
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, len(q), 1)], -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(k)], v)


@pytest.fixture
def handed_out(version: str) -> Any:
    """A layer's cache as vLLM makes it, from what the backend asks for."""

    def made(backend: Any, **fields: Any) -> Any:
        ours = backend.PtxgenAttentionBackend
        if version == "0.25":
            return torch.full(ours.get_kv_cache_shape(BLOCKS, BLOCK, KV_HEADS, DIM), float("nan"))
        spec = cache_spec(**fields)
        (layout,) = ours.supported_kv_cache_layouts()
        return kv_cache(layout, ours.customize_spec(spec), BLOCKS)

    return made


def cache_spec(**fields: Any) -> Any:
    """vLLM's own, before the backend has seen it."""
    values = dict(block_size=BLOCK, num_kv_heads=KV_HEADS, head_size=DIM, head_size_v=DIM, dtype=torch.float32)
    values |= dict(num_head_slots=None, state_content_bytes=None)
    return sys.modules["vllm.v1.kv_cache_interface"].AttentionSpec(**values | fields)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("more", [{}, dict(sliding_window=9, logits_soft_cap=2.0, sinks=True)])
def test_forward(more: dict[str, Any], invariant: bool, backend: Any, handed_out: Any) -> None:
    """A prompt, a chunk behind it, then a token each, with the padding of a graph's batch."""
    sys.modules["vllm"].envs.VLLM_BATCH_INVARIANT = invariant
    torch.manual_seed(0)
    sinks = torch.full((HEADS,), float("nan"), dtype=torch.bfloat16) if more.get("sinks") else None
    impl = backend.PtxgenAttentionImpl(HEADS, DIM, 0.2, KV_HEADS, **{**more, "sinks": sinks})
    if sinks is not None:
        sinks.data.copy_(torch.randn(HEADS))  # as vLLM loads weights
    builder = backend.PtxgenMetadataBuilder(SimpleNamespace(block_size=BLOCK), ["0"], None, torch.device("cpu"))
    cache = handed_out(backend)
    table = torch.tensor([[3, 5, 0], [7, 2, 11]], dtype=torch.int32)
    keys: list[list[Any]] = [[], []]
    for lengths, tokens in (([20, 5], [20, 5]), ([24, 21], [4, 16]), ([25, 22], [1, 1]), ([26, 23], [1, 1])):
        padded = 3 if max(tokens) > 1 else 0
        total = sum(tokens) + padded
        q, k, v = (torch.randn(total, n, DIM) for n in (HEADS, KV_HEADS, KV_HEADS))
        metadata = builder.build(0, common(lengths, tokens, table, padded))
        assert metadata.single == (max(tokens) == 1)
        out = torch.full((total, HEADS * DIM), float("nan"))
        assert impl.forward(None, q, k, v, cache, metadata, out) is out
        first = 0
        for r, n in enumerate(tokens):
            keys[r].append((k[first : first + n], v[first : first + n]))
            whole_k, whole_v = (torch.cat(side) for side in zip(*keys[r], strict=True))
            wanted = expected(
                q[first : first + n],
                whole_k,
                whole_v,
                more.get("sliding_window", 0),
                more.get("logits_soft_cap", 0),
                sinks,
            )
            found = out[first : first + n].view(n, HEADS, DIM).double()
            assert torch.allclose(found, wanted, atol=1e-5)
            first += n
    pages = cache.isnan().flatten(2).all(2)
    assert (pages if pages.shape[0] == BLOCKS else pages.T)[1].all(), "a page that nobody has"


@pytest.mark.parametrize(
    "shape", [(BLOCKS, 2, BLOCK, KV_HEADS, DIM), (BLOCKS, KV_HEADS, BLOCK, 2 * DIM), (2, BLOCKS, KV_HEADS, BLOCK, DIM)]
)
def test_a_cache_of_another_shape(shape: tuple[int, ...], backend: Any) -> None:
    """As other backends have it, and as later versions of vLLM hand it out: refused, before anything is written."""
    impl = backend.PtxgenAttentionImpl(HEADS, DIM, 0.2, KV_HEADS)
    builder = backend.PtxgenMetadataBuilder(SimpleNamespace(block_size=BLOCK), [], None, torch.device("cpu"))
    metadata = builder.build(0, common([4], [1], torch.zeros(1, 1, dtype=torch.int32)))
    q, k, v = (torch.ones(1, n, DIM) for n in (HEADS, KV_HEADS, KV_HEADS))
    cache = torch.zeros(shape)
    with pytest.raises(
        SpecError, match=r"kv_cache: (must be \[2, blocks, block_size, 2, 32\]|K and V must lie in one)"
    ):
        impl.forward(None, q, k, v, cache, metadata, torch.empty(1, HEADS * DIM))
    assert not cache.any()


@pytest.mark.parametrize("version", ["0.33"])
def test_what_is_asked_of_a_cache(version: str, backend: Any) -> None:
    ours, layouts = backend.PtxgenAttentionBackend, sys.modules["vllm.v1.kv_cache_interface"].KVCacheLayout
    asked = ours.customize_spec(cache_spec(dtype=torch.bfloat16))
    assert (asked.num_head_slots, asked.state_content_bytes) == (2, KV_HEADS * DIM * 2)
    assert ours.customize_spec(asked) is asked
    assert ours.supported_kv_cache_layouts() == (layouts.LHBNC,)
    with pytest.raises(SpecError, match=r"head_size_v: must be head_size=32 \(got 16\)"):
        ours.customize_spec(cache_spec(head_size_v=16))
    impl = backend.PtxgenAttentionImpl(HEADS, DIM, 0.2, KV_HEADS)
    for layout in (layouts.LBHNC, layouts.LBNHC):
        with pytest.raises(SpecError, match=r"kv_cache: K and V must lie in one piece each, layout LHBNC"):
            impl._planes(kv_cache(layout, asked, BLOCKS))


def test_profiling_run(backend: Any) -> None:
    impl = backend.PtxgenAttentionImpl(HEADS, DIM, 0.2)
    out = torch.ones(3, HEADS * DIM)
    assert not impl.forward(None, out, out, out, torch.empty(0), None, out).any()
    with pytest.raises(SpecError, match="output_scale"):
        impl.forward(None, out, out, out, torch.empty(0), None, out, output_scale=out)
    builder = backend.PtxgenMetadataBuilder(SimpleNamespace(block_size=BLOCK), [], None, torch.device("cpu"))
    batch = common([4], [1], torch.zeros(1, 1, dtype=torch.int32))
    batch.causal = False
    with pytest.raises(SpecError, match="causal"):
        builder.build(0, batch)
