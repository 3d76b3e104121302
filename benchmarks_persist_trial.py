"""Trial of the persistent step at real shapes: checked in torch, timed in a graph."""
import statistics, sys, time, json
import numpy as np, torch
import ptxgen
from ptxgen import runtime
from ptxgen.kernels.persistent_step import PersistentStep
from ptxgen.persistent import feed, plan as planmod, inputs, begin, rows, attend

SHAPES = {
 "small": dict(n_layers=3,dim=256,hidden=704,n_heads=8,n_kv_heads=2,head_dim=64,max_len=600,vocab=1000),
 "llama-3.2-1b": dict(n_layers=16,dim=2048,hidden=8192,n_heads=32,n_kv_heads=8,head_dim=64,max_len=4608,vocab=128256,theta=500000.0),
 "qwen2.5-1.5b": dict(n_layers=28,dim=1536,hidden=8960,n_heads=12,n_kv_heads=2,head_dim=128,max_len=4608,vocab=151936,theta=1e6,bias=True),
 "llama-3-8b": dict(n_layers=32,dim=4096,hidden=14336,n_heads=32,n_kv_heads=8,head_dim=128,max_len=4608,vocab=128256,theta=500000.0),
}
def unpack(p, rows, cols):
    rec=-(-rows//16)
    v=p.view(torch.bfloat16).view(rec, -1, 4, 8, 4, 2, 2, 2)
    return v.permute(0,6,3,1,2,4,5,7).reshape(rec*16, -1)[:rows,:cols]
def make(spec):
    torch.manual_seed(0); a={}
    for p in spec.params():
        n=p.elements({})
        if p.name in("exchange",): continue
        if p.dtype.name=="u8":
            k=p.shape[1]//32
            a[p.name]=(torch.randn(n//2,device="cuda",dtype=torch.bfloat16)*(k**-0.5)).view(torch.uint8).view(p.shape)
        elif p.dtype.name=="s32": a[p.name]=torch.zeros(1,dtype=torch.int32,device="cuda")
        elif p.dtype.name=="f16": a[p.name]=torch.randn(p.shape,device="cuda",dtype=torch.float16)
        elif p.name.startswith(("norm","mlp_norm")): a[p.name]=1+0.2*torch.randn(p.shape,device="cuda")
        else: a[p.name]=torch.randn(p.shape,device="cuda")
    return a
def reference(spec,a,pos):
    D=torch.float64; pl=spec.plan
    def W(n,r,c,part=0,gated=False):
        t=a[n]
        if gated: t=t.view(-1,2,t.shape[1])[:,part].contiguous()
        return unpack(t.reshape(-1),r,c).to(torch.float32)
    def mv(w,x): return (w.double()@x)
    def norm(x,n): return x/torch.sqrt((x*x).mean()+spec.eps)*a[n].double()
    x=a["x"].double(); hd=spec.head_dim
    f=torch.tensor(spec.rotation.frequencies(),device="cuda",dtype=D)*pos
    c,s=torch.cos(f),torch.sin(f)
    def rot(t):
        h=hd//2; p,q=t[:,:h],t[:,h:]; return torch.cat([p*c-q*s,q*c+p*s],1)
    for i in range(spec.n_layers):
        qkv=mv(W(f"qkv_{i}",pl.products[0].rows,spec.dim),norm(x,f"norm_{i}"))
        if spec.bias: qkv=qkv+a[f"bias_{i}"].double()
        q,k,v=qkv.split([pl.q_width,pl.kv_width,pl.kv_width])
        q=rot(q.view(-1,hd)); k=rot(k.view(-1,hd)).to(torch.float16).double(); v=v.view(-1,hd).to(torch.float16).double()
        K=torch.cat([a[f"k_cache_{i}"][:,:pos].double(),k[:,None]],1); V=torch.cat([a[f"v_cache_{i}"][:,:pos].double(),v[:,None]],1)
        g=pl.group; q=q.view(-1,g,hd)
        w=torch.softmax(torch.einsum("hgd,hpd->hgp",q,K)/hd**0.5,-1)
        x=x+mv(W(f"o_{i}",spec.dim,pl.q_width),torch.einsum("hgp,hpd->hgd",w,V).reshape(-1))
        y=norm(x,f"mlp_norm_{i}"); gt=mv(W(f"gate_up_{i}",spec.hidden,spec.dim,0,True),y); up=mv(W(f"gate_up_{i}",spec.hidden,spec.dim,1,True),y)
        x=x+mv(W(f"down_{i}",spec.dim,spec.hidden),gt/(1+torch.exp(-gt))*up)
    return mv(W("head",spec.vocab,spec.dim),norm(x,"norm"))
def spec_of(name,i=0,**more): return PersistentStep(**SHAPES[name],ctas=132,split_rows=256+i,**more)
def run(name,depths,variants,check=True):
    dev=runtime.open_device("cuda"); a=None
    for i,(label,patch,more) in enumerate(variants):
        try:
            for m,k,v in patch: setattr(m,k,v)
            spec=spec_of(name,i,**more)
            if a is None: a=make(spec)
            kernel=dev.load(spec); bound=kernel.bind(**a)
            for d in depths:
                a["position"].fill_(d); torch.cuda.synchronize()
                st=dev.default_stream
                bound.launch(st); st.synchronize()
                msg=""
                if check:
                    got=a["logits"].double().clone(); ref=reference(spec,a,d)
                    a["position"].fill_(d); torch.cuda.synchronize(); bound.launch(st); st.synchronize()
                    same=bool((a["logits"].double()==got).all())
                    msg=f"err {float((got-ref).norm()/ref.norm()):.2e} argmax {int(got.argmax())} {int(a['chosen'])} {int(ref.argmax())} repeat {same}"
                g=dev.graph()
                for _ in range(8): g.add(bound)
                ts=[]; a["position"].fill_(d); torch.cuda.synchronize()
                g.launch(st); st.synchronize()
                for _ in range(9):
                    e0=st.record(); g.launch(st); e1=st.record(); e1.synchronize(); ts.append(e1.elapsed_us(e0)/8)
                print(json.dumps(dict(model=name,variant=label,depth=d,us=round(statistics.median(ts),1),least=round(min(ts),1),msg=msg)),flush=True)
        except Exception as e:
            print(json.dumps(dict(model=name,variant=label,error=str(e)[-300:])),flush=True); raise
if __name__=="__main__":
    what=sys.argv[1]
    base=[("base",[],{})]
    if what=="small": run("small",(0,5,300,599),base)
    if what=="1b": run("llama-3.2-1b",(0,128,511,4096),base)
    if what=="1b-early":
        vs=[(f"early {e}",[(feed,"EARLY",e)],{}) for e in (1,2,3,4,6,9)]
        vs+=[(f"early 2 copies {c}",[(feed,"EARLY",2),(planmod,"COPIES",c)],{}) for c in (1,2,4,16)]
        run("llama-3.2-1b",(128,),vs,check=False)
    if what=="qwen": run("qwen2.5-1.5b",(128,4096),base)
    if what=="8b": run("llama-3-8b",(128,4096),base)
