import json, math, os, random, statistics, sys, time, ctypes, shutil
from multiprocessing import get_context
from functools import partial
T0 = time.monotonic()
OUT = os.environ.get("JOB_OUT", "/tmp")
from ptxgen.assembler import VARIABLE, assemble
from ptxgen.generator import generate
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.dtypes import bf16, e4m3
from ptxgen.errors import SpecError
from ptxgen.products.wgmma.geometry import Geometry
from ptxgen.products.wgmma.tiles import cycles
from benchmarks.products import SHAPES, Weights
TARGET = "sm_90a"

def rec(slot, cond=""):
    return (f"    {cond}mov.u64 %prc, %clock64;\n" f"    {cond}st.global.u64 [%pra+{8*slot}], %prc;\n")

def probe(text):
    """Clock reads of thread 0 (a multiplying warp)."""
    head, _, body = text.partition("\n{\n")
    head = head.replace(".extern .shared", ".visible .global .align 8 .b64 probe[17408];\n.extern .shared", 1)
    decl = ("    .reg .u64 %pra, %prc, %prb;\n    .reg .u32 %prt, %prx;\n    .reg .pred %prp, %prf, %prz;\n")
    start = ("    mov.u32 %prt, %tid.x;\n    setp.eq.u32 %prp, %prt, 0;\n    mov.u32 %prx, %ctaid.x;\n    mov.u64 %prb, probe;\n"
             "    mad.wide.u32 %pra, %prx, 1024, %prb;\n"
             "    mov.u64 %prc, %clock64;\n    @%prp st.global.u64 [%pra], %prc;\n"
             "    mov.u64 %prc, %globaltimer;\n    @%prp st.global.u64 [%pra+8], %prc;\n    setp.ne.u32 %prf, 0, 0;\n")
    mark = "    // locate:"
    i = body.index(mark)
    body = body[:i] + start + body[i:]
    role = body.index("    // the others multiply")
    a, m = body[:role], body[role:]
    def c(slot): return f"    mov.u64 %prc, %clock64;\n    st.global.u64 [%pra+{960 + 8 * slot}], %prc;\n"
    if "    // early_weights" in a:
        a = a.replace("    // early_weights", c(0) + "    // early_weights", 1)
    if "griddepcontrol.launch_dependents" in a:
        a = a.replace("    griddepcontrol.launch_dependents", c(1) + "    griddepcontrol.launch_dependents", 1)
        a = a.replace("    griddepcontrol.wait;\n", "    griddepcontrol.wait;\n" + c(2), 1)
    a = a.replace("$copied_stages:", c(3) + "$copied_stages:", 1) if "$copied_stages:" in a else a
    m = m.replace("    // count:", "    mov.u64 %prc, %clock64;\n    @%prp st.global.u64 [%pra+16], %prc;\n    // count:", 1)
    m = m.replace("    // begin_sums", "    add.u64 %pra, %pra, 32;\n    mov.u64 %prc, %clock64;\n    @%prp st.global.u64 [%pra], %prc;\n    and.pred %prf, %prp, %prp;\n    // begin_sums", 1)
    m = m.replace("    // find_stage", "    mov.u64 %prc, %clock64;\n    @%prf st.global.u64 [%pra+8], %prc;\n    setp.ne.u32 %prf, 0, 0;\n    // find_stage", 1)
    d = m.index("    // drain:")
    w = m.index("\n", m.index("wgmma.wait_group.sync.aligned 0;", d)) + 1
    m = m[:w] + "    mov.u64 %prc, %clock64;\n    @%prp st.global.u64 [%pra+16], %prc;\n" + m[w:]
    e = m.rindex("    add.u32 %tile, %tile, %tile_step;")
    m = m[:e] + "    mov.u64 %prc, %clock64;\n    @%prp st.global.u64 [%pra+24], %prc;\n    mov.u64 %prc, %globaltimer;\n    @%prp st.global.u64 [%pra+32], %prc;\n" + m[e:]
    return head + "\n{\n" + decl + a + m

P, S = (1, 2, 3, 4), (2, 1)
NEW, T0, L, LP = (1, 1, P, S, 0, 0), (1, 0, P, S, 0, 0), (1, 1, P, S, 192, 0), (1, 1, P, S, 192, 128)
OLD = T0
LABEL = {NEW: "", T0: ":noturns", L: ":L", LP: ":LP"}

def make(job):
    spec, probed, flags = job
    import ptxgen.kernels.packed_gemm as pg, ptxgen.products.wgmma.promoted as pr, ptxgen.products.wgmma.geometry as ge, ptxgen.products.wgmma.elected as el
    from ptxgen.generator import clear_cache
    clear_cache()
    pg.in_a_row = el.in_a_row if flags[0] else (lambda *a: False)
    ge.TURNS, ge.PIECES, ge.SHORTS, ge.LONG, ge.LONG_PAIRS = bool(flags[1]), *flags[2:]
    ptx = generate(spec, TARGET)
    text = probe(ptx.text) if probed else ptx.text
    if probed:
        import copy
        ptx = copy.copy(ptx)
        object.__setattr__(ptx, "text", text)
    return ptx, assemble(text, TARGET).cubin if os.environ.get(VARIABLE) else b""

class Pool:
    def __init__(self, jobs):
        found = os.environ.get(VARIABLE) or shutil.which("ptxas")
        if found: os.environ[VARIABLE] = found
        self.pool = get_context("spawn").Pool(max(1, min(15, (os.cpu_count() or 2) - 1)))
        self.jobs = {}
        for job in jobs:
            if job not in self.jobs: self.jobs[job] = self.pool.apply_async(make, (job,))
    def get(self, spec, probed=False, flags=NEW): return self.jobs[spec, probed, flags].get(120)

def packing(spec):
    return PackTokens(spec.k, spec.tokens, dtype=spec.x_dtype, precision="fast", group=spec.x_group)

def name(spec): return f"{spec.tokens}x{spec.tile_rows}x{spec.split}x{spec.share}"

def legal(base, tokens, rows, splits, shares):
    out = []
    for t in tokens:
        for r in rows:
            for s in splits:
                for sh in shares:
                    try: spec = PackedGemm(**{**base, "tokens": t, "tile_rows": r, "split": s, "share": sh})
                    except SpecError: continue
                    at = Geometry.of(spec)
                    if at.shape.groups * at.shape.blocks * 64 != r or (s and at.shape.split != s): continue
                    out.append(spec)
    return out

def with_flags(best, specs, flags):
    found = [(best, NEW), (best, OLD)] + [(s, f) for s in [best, *specs] for f in flags]
    return list(dict.fromkeys(found))

def plan():
    """(what, m, n, k, weights, [specs])"""
    found = []
    def bf(m, n, k): return dict(n=n, k=k, weights="bf16", precision="fast", out_dtype=bf16, programmatic=True)
    for m in (512, 128):
        for n, k in SHAPES:
            base = bf(m, n, k)
            best = PackedGemm.best(m, **base)
            if n > 1 << 16:
                if m == 512: found.append(("bf16", m, n, k, "bf16", [(best, NEW)] + [(s, NEW) for s in legal(base, (256,), (64, 128), (1,), (1, 2))]))
                continue
            specs = legal(base, (128, 192, 256) if m > 128 else (64, 96, 128), (64, 128, 192, 256), (1, 2, 4), (1, 2))
            specs.sort(key=lambda s: cycles(s, m))
            pairs = [(best, NEW)] + [(s, NEW) for s in specs[:5]]
            one = legal(base, (112, 128, 192), (64,), (1, 2), (1,)) if m == 512 else legal(base, (64, 128), (64,), (1, 2, 4), (1,))
            two = legal(base, (112, 128), (128, 192), (1, 2), (1,)) if m == 512 else legal(base, (128,), (128, 192), (1, 2, 4), (1,))
            pairs += [(s, f) for s in one for f in (NEW, L)] + [(s, f) for s in two for f in (NEW, LP)]
            found.append(("bf16", m, n, k, "bf16", list(dict.fromkeys(pairs))))
    for m in (512, 4096):
        for n, k in SHAPES[:4]:
            base = dict(n=n, k=k, weights="e4m3_block", x_dtype=e4m3, precision="fast", out_dtype=bf16, programmatic=True)
            best = PackedGemm.best(m, **base)
            specs = legal(base, (64, 96, 128, 192, 256), (64, 128, 192), (1, 2), (1, 2))
            specs.sort(key=lambda s: cycles(s, m))
            found.append(("e4m3_block", m, n, k, "e4m3_block", list(dict.fromkeys([(best, NEW), (best, T0)] + [(s, NEW) for s in specs[:8]]))))
    for n, k in SHAPES[:4]:
        base = dict(n=n, k=k, weights="e4m3_channel", x_dtype=e4m3, precision="fast", out_dtype=bf16, programmatic=True)
        best = PackedGemm.best(512, **base)
        specs = legal(base, (112, 128), (64,), (1,), (1,))
        found.append(("e4m3_channel", 512, n, k, "e4m3_channel", list(dict.fromkeys([(best, NEW), (best, L)] + [(s, f) for s in specs for f in (NEW, L)]))))
    for n, k in SHAPES:
        if n > 1 << 16: continue
        best = PackedGemm.best(64, **bf(64, n, k))
        found.append(("bf16", 64, n, k, "bf16", [(best, NEW), (best, L)]))
    return found

PROBED = {(2048, 2048), (3072, 2048), (4096, 4096), (28672, 4096), (17920, 1536), (2048, 8192), (6144, 4096)}

def rows_of(case, done):
    pass

def bench(pool, what, m, n, k, w, specs, log):
    import torch
    from benchmarks.gpu import Loaded, sets_for
    t0 = time.monotonic()
    x = torch.randn(m, k, device="cuda")
    weights = Weights(w, n, k)
    count = min(24, sets_for(weights.packed.numel(), 260e6))
    copies = [weights.packed, *(weights.packed.clone() for _ in range(count - 1))]
    times = max(1, min(16, int(2000 / (2 * m * n * k / 600e6))) // count) if m < 2048 else 1
    some = torch.arange(0, m, max(1, m // 64), device="cuda")
    calls, tiles, loaded, errors = {}, {}, [], {}
    wanted = None
    label = lambda pair: name(pair[0]) + LABEL[pair[1]]
    for spec, flags in specs:
        p = packing(spec)
        if p not in tiles:
            L = Loaded(*pool.get(p), rows=m); loaded.append(L)
            outs = {}
            for prm in L.ptx.params:
                if prm.access == "out" or prm.name in ("out", "scales", "x_scales"):
                    dt = torch.float32 if prm.dtype.name == "f32" else torch.uint8
                    nel = prm.elements({"rows": m})
                    outs[prm.name] = torch.zeros(nel * (1 if prm.dtype.name != "bf16" else 2), dtype=dt, device="cuda")
            L.bind(x=x, n_rows=m, **outs)()
            tiles[p] = outs
        outs = tiles[p]
        xs = {}
        if spec.scaled:
            scale = next(v for kk, v in outs.items() if kk != "out")
            xs["x_scales"] = scale
        L = Loaded(*pool.get(spec, False, flags), rows=m); loaded.append(L)
        nm = label((spec, flags))
        out = torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)
        calls[nm] = [L.bind(x=outs["out"], weight=c, out=out, n_rows=m, **xs) for c in copies]
        calls[nm][0]()
        if wanted is None: wanted = weights.product(x[some])
        errors[nm] = float((out[some].double() - wanted).norm() / wanted.norm())
    if w == "bf16":
        mats = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        half, res = x.bfloat16(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        calls["cublas"] = [partial(torch.mm, half, each.t(), out=res) for each in mats]
    else:
        mats = [(torch.randn(n, k, device="cuda") * 100).to(torch.float8_e4m3fn) for _ in range(min(count, 6))]
        from benchmarks.e4m3_products import peers
        for impl, product in peers((x * 100).to(torch.float8_e4m3fn), n, k, w).items():
            calls[impl] = [partial(product, each) for each in mats]
    graphs = {}
    stream = torch.cuda.Stream()
    for nm, cs in calls.items():
        try:
            with torch.cuda.stream(stream): cs[0]()
            torch.cuda.synchronize()
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g, stream=stream):
                for c in list(cs) * times: c()
            graphs[nm] = (g, len(cs) * times)
        except Exception as e:
            print("no", nm, repr(e)[:100])
    us = {nm: [] for nm in graphs}
    for rnd in range(3):
        for nm in random.Random(rnd).sample(sorted(graphs), len(graphs)):
            g, cnt = graphs[nm]
            end = time.perf_counter() + 0.004
            while True:
                g.replay(); torch.cuda.synchronize()
                if time.perf_counter() > end: break
            ts = []
            for _ in range(3):
                a, b = torch.cuda.Event(True), torch.cuda.Event(True)
                a.record(); g.replay(); b.record(); torch.cuda.synchronize()
                ts.append(a.elapsed_time(b) * 1e3 / cnt)
            us[nm].append(statistics.median(ts))
    med = {nm: statistics.median(v) for nm, v in us.items()}
    log.write(json.dumps(dict(what=what, m=m, n=n, k=k, us=med, errors=errors, best=label(specs[0]))) + "\n"); log.flush()
    bad = {a: f"{e:.1e}" for a, e in errors.items() if not e < (5e-3 if w == "bf16" else 4e-2)}
    peer = min(v for a, v in med.items() if a.startswith("cublas"))
    order = sorted((a for a in med if not a.startswith("cublas")), key=med.get)
    print(f"{what} {m} {n}x{k} peer {peer:.2f} best {label(specs[0])} {med[label(specs[0])]:.2f} old {med[label(specs[1])]:.2f} | " + " ".join(f"{a}:{med[a]:.2f}" for a in order[:7]), f"ratio {peer/med[order[0]]:.2f}", "BAD " + str(bad) if bad else "", f"{time.monotonic()-t0:.1f}s", flush=True)
    # probes
    if what == "bf16" and m == 512 and (n, k) in PROBED:
        for spec, flags in specs[:2]:
            probes(pool, spec, flags, m, tiles[packing(spec)]["out"], copies, n)
        if order[0] not in (label(specs[0]), label(specs[1])):
            spec, flags = next(s for s in specs if label(s) == order[0])
            probes(pool, spec, flags, m, tiles[packing(spec)]["out"], copies, n)
    torch.cuda.synchronize()
    for L in loaded: L.close()
    del graphs, calls, copies

def probes(pool, spec, flags, m, x, copies, n):
    import torch, numpy as np
    from benchmarks.gpu import Loaded, check
    from cuda.bindings import driver
    try: made = pool.get(spec, True, flags)
    except KeyError: return
    L = Loaded(*made, rows=m)
    if L.launch_at.grid[0] > 136: return L.close()
    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    cs = [L.bind(x=x, weight=c, out=out, n_rows=m) for c in copies]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream): cs[0]()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=stream):
        for c in cs * max(1, 12 // len(cs)): c()
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end: g.replay(); torch.cuda.synchronize()
    a, b = torch.cuda.Event(True), torch.cuda.Event(True)
    a.record(); g.replay(); b.record(); torch.cuda.synchronize()
    took = a.elapsed_time(b) * 1e3 / (len(cs) * max(1, 12 // len(cs)))
    ptr, size = check(driver.cuModuleGetGlobal(L.module, b"probe"))
    host = np.zeros(17408, np.uint64)
    check(driver.cuMemcpyDtoH(host.ctypes.data, ptr, host.nbytes))
    p = host.reshape(136, 128).astype(np.int64)
    ctas = int(L.launch_at.grid[0])
    p = p[: min(136, ctas)]
    at = Geometry.of(spec)
    steps = at.steps // at.shape.split
    c0 = p[:, 0]
    lines = []
    med = lambda v: int(np.median(v))
    lines.append("copier " + " ".join(str(med(p[:, 120 + i] - c0)) for i in range(3)))
    for t in range(3):
        q = p[:, 4 + 4 * t : 8 + 4 * t]
        ok = (q[:, 0] > c0) & (q[:, 3] > q[:, 0])
        if not ok.any(): break
        d = q[ok] - c0[ok][:, None]
        lines.append(f"tile{t} n{ok.sum()} begin {med(d[:,0])} first {med(d[:,1])} drained {med(d[:,2])} end {med(d[:,3])} (max {d[:,3].max()}) step {(med(d[:,2]-d[:,1]))/steps:.0f} epi {med(d[:,3]-d[:,2])} max {int((d[:,3]-d[:,2]).max())}")
    # clock: of a CTA's first tile the end timer where there is no second
    starts = p[:, 1]
    ends = np.max(p[:, 4:100], 1)
    print(f"  probe {name(spec)}{LABEL[flags]} {took:.2f}us steps {steps} dep {med(p[:,2]-c0)} start spread {int(starts.max()-starts.min())}ns", "; ".join(lines), flush=True)
    last = [int(v) for v in p[0, :16]]
    tail = p[:, :].copy()
    # globaltimer of the end is the word after the last tile's
    fr = []
    for row in p:
        tl = 0
        while 8 + 4 * (tl + 1) + 3 < 100 and row[4 + 4 * (tl + 1) + 1] > row[0] and row[4 + 4 * (tl + 1)] < (1 << 60) and row[4+4*(tl+1)+3] > row[4+4*tl+3] and row[4+4*(tl+1)] < row[4+4*(tl+1)+3]: tl += 1
        g1, c1 = row[4 + 4 * tl + 4], row[4 + 4 * tl + 3]
        if g1 > row[1]: fr.append((c1 - row[0]) / (g1 - row[1]))
    if fr: print(f"  clock {np.median(fr):.3f} GHz", f"span {int(max(0, np.max([r[4:100].max() for r in p]) - starts.min()))}", flush=True)
    L.close()

def side(args, name, limit):
    """A benchmark as a process; its rows go to OUT, short."""
    import subprocess
    path = f"benchmarks/results/{name}.jsonl"
    before = sum(1 for _ in open(path))
    try:
        done = subprocess.run([sys.executable, "-m", *args], timeout=limit, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(name, done.returncode, "" if done.returncode == 0 else done.stdout[-800:])
    except subprocess.TimeoutExpired as e: print(name, "ran out of time", (e.stdout or b"")[-600:])
    short = {}
    with open(os.path.join(OUT, f"{name}.jsonl"), "a") as f:
        for line in list(open(path))[before:]:
            f.write(line)
            r = json.loads(line)
            c = r["case"]
            key = " ".join(f"{a}={v}" for a, v in c.items() if a not in ("n_heads", "n_kv_heads", "dtype"))
            short.setdefault(key, []).append(f"{r['impl']} {r['tflops']:.0f}" if "tflops" in r else f"{r['impl']} {r['us']:.0f}us")
    for key, v in short.items(): print("  ", key, "; ".join(v))
    print(f"{time.monotonic()-T0:.1f}s", flush=True)

def main():
    limit = float(sys.argv[1])
    cases = plan()
    jobs = []
    for what, m, n, k, w, specs in cases:
        for spec, flags in specs: jobs += [(packing(spec), False, NEW), (spec, False, flags)]
        if what == "bf16" and m == 512 and (n, k) in PROBED:
            for spec, flags in specs: jobs.append((spec, True, flags))
    print(len(set(jobs)), "kernels", f"{time.monotonic()-T0:.1f}s", flush=True)
    pool = Pool(jobs)
    if limit < 0:
        for j in list(pool.jobs)[:3]: pool.get(*j)
        return
    import torch
    log = open(os.path.join(OUT, "sweep.jsonl"), "w")
    for case in cases:
        if time.monotonic() - T0 > limit: print("no time", case[:5]); continue
        try: bench(pool, *case, log)
        except Exception as e:
            import traceback; traceback.print_exc()
    pool.pool.terminate()
    print(f"{time.monotonic()-T0:.1f}s")

if __name__ == "__main__": main()
