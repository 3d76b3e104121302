"""The torch operators: results, fakes, torch.compile, torch graphs; on the CPU executor and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import SpecError
from tests.support.attention.kv_oracle import attention

torch = pytest.importorskip("torch", reason="torch is not installed")

import ptxgen.torch as ops  # noqa: E402


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def caches(where: str, kind: str = "float16") -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    q = torch.randn(3, 4, 64)
    k, v = (torch.randn(3, 2, 40, 64).to(getattr(torch, kind)) for _ in "kv")
    lengths = torch.tensor([40, 0, 17], dtype=torch.int32)
    return tuple(x.to(where) for x in (q, k, v, lengths))


def expected(q: Any, k: Any, v: Any, lengths: Any) -> np.ndarray:
    return np.stack([
        attention(q[i].cpu().numpy(), *(x[i, :, :n].float().cpu().numpy().swapaxes(0, 1) for x in (k, v)))
        for i, n in enumerate(lengths.tolist())
    ])  # fmt: skip


def test_decode_attention(where: str) -> None:
    given = caches(where)
    got = ops.decode_attention(*given)
    assert np.allclose(got.cpu().numpy(), expected(*given), atol=4e-3)
    scaled = ops.decode_attention(*given, scale=0.5)
    assert not torch.equal(got, scaled)


def test_kv_append_and_pages(where: str) -> None:
    q, k, v, _ = caches(where)
    pages = [torch.zeros(6, 2, 16, 64, dtype=torch.float16, device=where) for _ in "kv"]
    flat = [torch.zeros_like(k), torch.zeros_like(v)]
    table = torch.tensor([[4, 0, -1], [1, -1, -1], [5, 2, 3]], dtype=torch.int32, device=where)
    for position in range(20):
        at = torch.tensor([position, -1, position], dtype=torch.int32, device=where)
        rows = [x[:, :, position].float().contiguous() for x in (k, v)]
        ops.kv_append(rows[0], rows[1], flat[0], flat[1], at)
        ops.kv_append(rows[0], rows[1], pages[0], pages[1], at, page_table=table)
    assert torch.equal(flat[0][0, :, :20], k[0, :, :20])
    assert not flat[1][1].any()
    assert torch.equal(pages[1][0, :, :4], v[0, :, 16:20])
    assert not pages[1][0, :, 4:].any()
    lengths = torch.tensor([20, 0, 20], dtype=torch.int32, device=where)
    contiguous = ops.decode_attention(q, *flat, lengths)
    assert torch.allclose(ops.decode_attention(q, *pages, lengths, page_table=table), contiguous, atol=4e-3)


def test_rope_and_argmax(where: str) -> None:
    q, k = torch.randn(5, 4, 64, device=where), torch.randn(5, 2, 64, device=where)
    positions = torch.tensor([0, 1, 7, 100, 4000], dtype=torch.int32, device=where)
    turned = ops.rope(q, k, positions)
    angle = positions.double()[:, None, None] * 10000.0 ** (-torch.arange(32, device=where).double() / 32)
    for got, x in zip(turned, (q, k), strict=True):
        a, b = x.double().chunk(2, -1)
        want = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        assert torch.allclose(got.double(), want, atol=2e-5)
    assert torch.equal(turned[0][0], q[0]), "position 0 rotates by nothing"
    x = torch.randn(2, 3, 5003, device=where)
    x[1, 2, 17] = x[1, 2, 4000] = 99
    assert torch.equal(ops.argmax(x).long(), x.argmax(-1))
    assert ops.argmax(x)[1, 2] == 17


def test_wrong_tensors_are_named(where: str) -> None:
    q, k, v, lengths = caches(where)
    with pytest.raises(Exception, match=r"incremental_attention\(k_cache\): must be contiguous"):
        ops.decode_attention(q, k.transpose(1, 2).contiguous().transpose(1, 2), v, lengths)
    with pytest.raises(Exception, match=r"head_dim|shape"):
        ops.decode_attention(q[..., :60], k, v, lengths)


def test_wrong_ranks_are_named(where: str) -> None:
    q, k, v, lengths = caches(where)
    for call, said in (
        (lambda: ops.decode_attention(q[0], k, v, lengths), r"decode_attention: q must have 3 axes .*\[4, 64\]"),
        (lambda: ops.decode_attention(q, k[0], v, lengths), "decode_attention: k_cache must have 4 axes"),
        (lambda: ops.kv_append(q[0], q[0], k, v, lengths), "kv_append: k must have 3 axes"),
        (lambda: ops.rope(q, q[0], lengths), "rope: k must have 3 axes"),
        (lambda: ops.argmax(q[0, 0, 0]), "argmax: x must have an axis"),
    ):
        with pytest.raises(SpecError, match=said):
            call()


def test_wrong_tensors_are_named_after_right_ones_too(where: str) -> None:
    """A launch that is prepared already is for tensors of the same types and shapes alone."""
    q, k, v, lengths = caches(where)
    ops.decode_attention(q, k, v, lengths)
    for wrong, says in (
        ((q, k, v, lengths.long()), r"bind\(seq_lens\): must be s32 \(got s64"),
        ((q, k, v[:, :, :24].contiguous(), lengths), r"bind\(v_cache\): must have shape"),
        ((q, k, v.float(), lengths), r"bind\(v_cache\): must be f16 \(got f32"),
        ((q, k, v, lengths[:2]), r"capacity batch|bind\(seq_lens\): must have shape"),
    ):
        with pytest.raises(Exception, match=says):
            ops.decode_attention(*wrong)
    assert np.allclose(ops.decode_attention(q, k, v, lengths).cpu().numpy(), expected(q, k, v, lengths), atol=4e-3)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_with_fullgraph(where: str, dynamic: bool) -> None:
    backend = "inductor" if where == "cuda" else "aot_eager"  # inductor needs a C++ compiler for CPU tensors

    def step(q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, positions: Any) -> Any:
        q, k = ops.rope(q * 2, k, positions)
        ops.kv_append(k, v, k_cache, v_cache, positions)
        out = ops.decode_attention(q, k_cache, v_cache, positions + 1)
        return ops.argmax(out.flatten(1) + 1), out

    def arguments() -> list[Any]:
        torch.manual_seed(1)
        rows = [torch.randn(2, n, 64, device=where) for n in (4, 2, 2)]
        stored = [torch.randn(2, 2, 32, 64, device=where).half() for _ in "kv"]
        return [*rows, *stored, torch.tensor([3, 9], dtype=torch.int32, device=where)]

    plain, compiled = arguments(), arguments()
    want = step(*plain)
    got = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=backend)(*compiled)
    assert torch.equal(got[0], want[0])
    assert torch.allclose(got[1], want[1], atol=1e-5)
    assert torch.equal(plain[3], compiled[3]), "the cache was written"


def test_schemas_and_fakes_pass_torchs_own_checks(where: str) -> None:
    q, k, v, lengths = caches(where)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.decode_attention, (q, k, v, lengths), test_utils=checks)
    rows = (q[:, :2].contiguous(), q[:, 2:].contiguous())
    torch.library.opcheck(
        torch.ops.ptxgen.kv_append.default, (*rows, k, v, lengths - 1, None, None, None), test_utils=checks
    )
    torch.library.opcheck(ops.rope, (q, q[:, :2].contiguous(), lengths), test_utils=checks)
    torch.library.opcheck(ops.argmax, (q,), test_utils=checks)


@pytest.mark.gpu
def test_in_a_torch_graph_without_a_warm_up() -> None:
    q, k, v, lengths = caches("cuda")
    lengths.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.decode_attention(q, k, v, lengths, window=13)
    for n in (1, 5, 40):
        lengths.fill_(n)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, ops.decode_attention(q, k, v, lengths, window=13)), n


@pytest.mark.gpu
def test_on_side_streams() -> None:
    given = caches("cuda")
    want = ops.decode_attention(*given)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    outs = []
    for stream in streams * 5:
        with torch.cuda.stream(stream):
            outs.append(ops.decode_attention(*given))
    torch.cuda.synchronize()
    assert all(torch.equal(out, want) for out in outs)
