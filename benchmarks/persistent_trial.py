"""Trial of the persistent step at real shapes: checked in torch, timed in a graph."""

import statistics, sys, time, json
import numpy as np, torch
import ptxgen
from ptxgen import runtime
from ptxgen.kernels.persistent_step import PersistentStep
from ptxgen.persistent import feed, plan as planmod, inputs, begin, rows, attend, steps as stepsmod

SHAPES = {
    "small": dict(n_layers=3, dim=256, hidden=704, n_heads=8, n_kv_heads=2, head_dim=64, max_len=600, vocab=1000),
    "llama-3.2-1b": dict(
        n_layers=16,
        dim=2048,
        hidden=8192,
        n_heads=32,
        n_kv_heads=8,
        head_dim=64,
        max_len=4608,
        vocab=128256,
        theta=500000.0,
    ),
    "qwen2.5-1.5b": dict(
        n_layers=28,
        dim=1536,
        hidden=8960,
        n_heads=12,
        n_kv_heads=2,
        head_dim=128,
        max_len=4608,
        vocab=151936,
        theta=1e6,
        bias=True,
    ),
    "llama-3-8b": dict(
        n_layers=32,
        dim=4096,
        hidden=14336,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        max_len=4608,
        vocab=128256,
        theta=500000.0,
    ),
}
from ptxgen.kernel import kernel_type
from ptxgen.launch import buffer
from ptxgen.dtypes import u64
from ptxgen.kernels.persistent_step import EVENTS


@kernel_type
class TracedStep(PersistentStep):
    """Traced."""

    def template(self, target):
        return "persistent_step"

    def params(self):
        return (*super().params(), buffer("times", u64, self.plan.ops, self.ctas, 8, access="out"))

    def mark(self, b, begin, steps):
        for i, event in enumerate(EVENTS):
            with b.fragment(f"mark_{event}", event):
                now = b.op("mov.u64", f"time_{event}", b.special("globaltimer"))
                to = b.ld_param("times") if i == 0 else b.registers["times"]
                if i:
                    b.op("ld.param.u64", to, __import__("ptxgen.builder.values", fromlist=["Addr"]).Addr("times_param"))
                at = b.registers.get("time_index") or b.reg("time_index", "u32")
                b.op("mad.lo.u32", at, steps.done, self.ctas, begin.cta)
                b.op("min.u32", at, at, self.plan.ops * self.ctas)
                b.op("mad.wide.u32", to, at, 64, to)
                b.op("st.global.u64", to[8 * i], now, pred=begin.leads)


def trace(name, depth, **more):
    dev = runtime.open_device("cuda")
    spec = TracedStep(**SHAPES[name], ctas=132, **more)
    a = make(spec)
    a["times"] = torch.zeros((spec.plan.ops, 132, 8), dtype=torch.int64, device="cuda").view(torch.uint64)
    bound = dev.load(spec).bind(**a)
    st = dev.default_stream
    for _ in range(3):
        a["position"].fill_(depth)
        torch.cuda.synchronize()
        bound.launch(st)
        st.synchronize()
    t = a["times"].view(torch.int64).cpu().numpy().astype(float)
    pl = spec.plan
    n = spec.n_layers
    t[t == 0] = np.nan
    names = ["qkv", "o", "gate_up", "down"]
    prev = lambda l, k: np.nanmax(t[4 * l + k, :, 3])
    print(
        f"{name} depth {depth}: total {np.nanmax(t[:, :, 3]) - np.nanmin(t[0]):.0f} ns; ns after the last CTA published the op before: median, 90 %, last; mean over layers"
    )

    def row(label, get, base):
        cols = []
        for ev in get:
            v = np.array(
                [
                    [
                        np.nanmedian(t[4 * l + k, :, ev]) - base(l),
                        np.nanpercentile(t[4 * l + k, :, ev], 90) - base(l),
                        np.nanmax(t[4 * l + k, :, ev]) - base(l),
                    ]
                    for l in range(2, n - 1)
                ]
            ).mean(0)
            cols.append(f"{EVENTS[ev]} " + " ".join(f"{x:.0f}" for x in v))
        print(f"  {label:10} " + " | ".join(cols), flush=True)

    att = lambda l: np.nanmax(t[4 * l, :, 5])
    k = 0
    row("qkv", (0, 1, 2, 3), lambda l: prev(l - 1, 3))
    k = 0
    row("attention", (4, 6, 7, 5), lambda l: prev(l, 0))
    k = 1
    row("o", (0, 1, 2, 3), att)
    k = 2
    row("gate_up", (0, 1, 2, 3), lambda l: prev(l, 1))
    k = 3
    row("down", (0, 1, 2, 3), lambda l: prev(l, 2))
    lay = np.mean([prev(l, 3) - prev(l - 1, 3) for l in range(2, n - 1)])
    head = np.nanmax(t[4 * n, :, 3]) - prev(n - 1, 3)
    print(
        f"  layer {lay:.0f}, head {head:.0f}, start to first publish {np.nanmax(t[0, :, 3]) - np.nanmin(t[0]):.0f}; one CTA's (40) ops of layer 5, ns:",
        flush=True,
    )
    o = np.nanmin(t[20])
    print(np.round(t[20:25, 40] - o).tolist(), np.round(t[20:25, 0] - o).tolist())


def unpack(p, rows, cols):
    rec = -(-rows // 16)
    v = p.view(torch.bfloat16).view(rec, -1, 4, 8, 4, 2, 2, 2)
    return v.permute(0, 6, 3, 1, 2, 4, 5, 7).reshape(rec * 16, -1)[:rows, :cols]


def make(spec):
    torch.manual_seed(0)
    a = {}
    for p in spec.params():
        n = p.elements({})
        if p.name in ("exchange",):
            continue
        if p.dtype.name == "u8":
            k = p.shape[1] // 32
            a[p.name] = (
                (torch.randn(n // 2, device="cuda", dtype=torch.bfloat16) * (k**-0.5)).view(torch.uint8).view(p.shape)
            )
        elif p.dtype.name == "s32":
            a[p.name] = torch.zeros(1, dtype=torch.int32, device="cuda")
        elif p.dtype.name == "f16":
            a[p.name] = torch.randn(p.shape, device="cuda", dtype=torch.float16)
        elif p.name.startswith(("norm", "mlp_norm")):
            a[p.name] = 1 + 0.2 * torch.randn(p.shape, device="cuda")
        else:
            a[p.name] = torch.randn(p.shape, device="cuda")
    return a


def reference(spec, a, pos):
    D = torch.float64
    pl = spec.plan

    def W(n, r, c, part=0, gated=False):
        t = a[n]
        if gated:
            t = t.view(-1, 2, t.shape[1])[:, part].contiguous()
        return unpack(t.reshape(-1), r, c).to(torch.float32)

    def mv(w, x):
        return w.double() @ x

    def norm(x, n):
        return x / torch.sqrt((x * x).mean() + spec.eps) * a[n].double()

    x = a["x"].double()
    hd = spec.head_dim
    f = torch.tensor(spec.rotation.frequencies(), device="cuda", dtype=D) * pos
    c, s = torch.cos(f), torch.sin(f)

    def rot(t):
        h = hd // 2
        p, q = t[:, :h], t[:, h:]
        return torch.cat([p * c - q * s, q * c + p * s], 1)

    for i in range(spec.n_layers):
        qkv = mv(W(f"qkv_{i}", pl.products[0].rows, spec.dim), norm(x, f"norm_{i}"))
        if spec.bias:
            qkv = qkv + a[f"bias_{i}"].double()
        q, k, v = qkv.split([pl.q_width, pl.kv_width, pl.kv_width])
        q = rot(q.view(-1, hd))
        k = rot(k.view(-1, hd)).to(torch.float16).double()
        v = v.view(-1, hd).to(torch.float16).double()
        K = torch.cat([a[f"k_cache_{i}"][:, :pos].double(), k[:, None]], 1)
        V = torch.cat([a[f"v_cache_{i}"][:, :pos].double(), v[:, None]], 1)
        g = pl.group
        q = q.view(-1, g, hd)
        w = torch.softmax(torch.einsum("hgd,hpd->hgp", q, K) / hd**0.5, -1)
        x = x + mv(W(f"o_{i}", spec.dim, pl.q_width), torch.einsum("hgp,hpd->hgd", w, V).reshape(-1))
        y = norm(x, f"mlp_norm_{i}")
        gt = mv(W(f"gate_up_{i}", spec.hidden, spec.dim, 0, True), y)
        up = mv(W(f"gate_up_{i}", spec.hidden, spec.dim, 1, True), y)
        x = x + mv(W(f"down_{i}", spec.dim, spec.hidden), gt / (1 + torch.exp(-gt)) * up)
    return mv(W("head", spec.vocab, spec.dim), norm(x, "norm"))


def spec_of(name, i=0, **more):
    return PersistentStep(**SHAPES[name], ctas=132, **{"split_rows": 256 + i, **more})


def run(name, depths, variants, check=True):
    dev = runtime.open_device("cuda")
    a = None
    for i, (label, patch, more) in enumerate(variants):
        try:
            for m, k, v in patch:
                setattr(m, k, v)
            spec = spec_of(name, i, **more)
            if a is None:
                a = make(spec)
            kernel = dev.load(spec)
            bound = kernel.bind(**a)
            for d in depths:
                a["position"].fill_(d)
                torch.cuda.synchronize()
                st = dev.default_stream
                bound.launch(st)
                st.synchronize()
                msg = ""
                if check:
                    got = a["logits"].double().clone()
                    ref = reference(spec, a, d)
                    a["position"].fill_(d)
                    torch.cuda.synchronize()
                    bound.launch(st)
                    st.synchronize()
                    same = bool((a["logits"].double() == got).all())
                    msg = f"err {float((got - ref).norm() / ref.norm()):.2e} argmax {int(got.argmax())} {int(a['chosen'])} {int(ref.argmax())} repeat {same}"
                g = dev.graph()
                for _ in range(8):
                    g.add(bound)
                ts = []
                a["position"].fill_(d)
                torch.cuda.synchronize()
                g.launch(st)
                st.synchronize()
                for _ in range(9):
                    e0 = st.record()
                    g.launch(st)
                    e1 = st.record()
                    e1.synchronize()
                    ts.append(e1.elapsed_us(e0) / 8)
                print(
                    json.dumps(
                        dict(
                            model=name,
                            variant=label,
                            depth=d,
                            us=round(statistics.median(ts), 1),
                            least=round(min(ts), 1),
                            msg=msg,
                        )
                    ),
                    flush=True,
                )
        except Exception as e:
            print(json.dumps(dict(model=name, variant=label, error=str(e)[-300:])), flush=True)
            raise


def model_trial(name):
    import functools
    from benchmarks.cases.models import MODELS, open_random, fill_cache
    from benchmarks.decode_step import at_depth, graph_us, tokens_us
    from ptxgen.runtime import Model
    dev = runtime.open_device("cuda")
    one = open_random(MODELS[name], "bf16", 4608, dev)
    two = Model(one.source, dev, "f16", weights=one.weights, persistent=True)
    for layer in range(one.shape.n_layers): fill_cache(two.cache.buffers(layer))
    prompt = list(range(5, 14))
    a, b = one.generate(prompt, 60), two.generate(prompt, 60)
    print(name, "tokens equal", a == b, a[9:19], b[9:19], len(two.steps.decode.program.ops), flush=True)
    for layer in range(one.shape.n_layers):
        for m in (one, two): fill_cache(m.cache.buffers(layer))
    for depth in (0, 128, 511, 4096):
        us = []
        for m in (one, two, one, two):
            us.append(round(graph_us(dev, m.steps.decode.graph, functools.partial(at_depth, m, depth), 32, 5), 1))
        host = []
        for m in (one, two):
            at_depth(m, depth); host.append(round(tokens_us(m, 32), 1))
        print(json.dumps(dict(model=name, depth=depth, graph=us[0::2], persistent=us[1::2], host=host)), flush=True)


if __name__ == "__main__":
    what = sys.argv[1]
    base = [("base", [], {})]
    if what.startswith("model:"):
        model_trial(what[6:])
    if what == "small":
        run("small", (0, 5, 300, 599), base)
    if what == "1b":
        run("llama-3.2-1b", (0, 128, 511, 4096), base)
    if what == "trace":
        trace("llama-3.2-1b", 128)
        trace("llama-3.2-1b", 511)
    if what == "slots":
        def v(label, stag=True, slots=7, early=2, late=6, window=9, alone=True, ahead=False, copies=8):
            return (label, [(feed,"STAGGERED",stag),(rows,"STAGGERED",stag),(planmod,"MOST_STAGES",slots),(feed,"EARLY",early),(feed,"LATE",late),(feed,"EARLY_UNITS",window),(inputs,"ALONE",alone),(stepsmod,"NORMS_AHEAD",ahead),(planmod,"COPIES",copies)], {})
        vs = [v("base")]
        vs += [v(f"aligned, {n} slots", stag=False, slots=n) for n in (9,7,6,5)]
        vs += [v(f"staggered, {n} slots", slots=n) for n in (9,8,6,5,4)]
        vs += [v(f"window {n}", window=n) for n in (7,4,0)]
        vs += [v("window 16 early 3", window=16, early=3), v("early 3", early=3), v("late 7", late=7), v("late 4", late=4), v("not alone", alone=False), v("norms ahead", ahead=True), v("copies 2", copies=2), v("norms ahead window 7 slots 6", ahead=True, window=7, slots=6)]
        run("llama-3.2-1b",(128,),vs,check=False)
    if what == "trace2":
        for stag, slots in ((True,7),(False,7),(True,9)):
            for m,k,v_ in ((feed,"STAGGERED",stag),(rows,"STAGGERED",stag),(planmod,"MOST_STAGES",slots)): setattr(m,k,v_)
            print("staggered", stag, "slots", slots); trace("llama-3.2-1b",128,split_rows=256+slots+20*stag)
    if what=="poll":
        vs=[]
        for l in (4,8):
            for alone in (False,True):
                vs.append((f"loads {l} alone {alone}",[(planmod,"LOADS",l),(inputs,"ALONE",alone),(planmod,"COPIES",4)],{}))
        vs += [("loads 8 norms ahead",[(inputs,"ALONE",False),(stepsmod,"NORMS_AHEAD",True)],{}),("loads 8 norms ahead late 5",[(feed,"LATE",5)],{}),("loads 8 norms ahead late 4",[(feed,"LATE",4)],{})]
        run("llama-3.2-1b",(128,511),vs,check=False)
    if what == "split":
        run(
            "llama-3.2-1b",
            (128, 511, 4096),
            [(f"split {n}", [], {"split_rows": n}) for n in (64, 128, 512, 1024)],
            check=False,
        )
    if what == "qwen":
        run("qwen2.5-1.5b", (0, 128, 4096), base)
    if what == "8b":
        run(
            "llama-3-8b",
            (128, 4096),
            base + [("late 4", [(feed, "LATE", 4)], {}), ("late 5", [(feed, "LATE", 5)], {})],
            check=False,
        )
