// sm_90: a ring of cp.async.bulk copies on full and empty mbarriers, one producer thread, and a bulk store at the end.
#define STAGES 3
#define TILE 256
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait(unsigned bar, unsigned parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
                 ::"r"(bar), "r"(parity) : "memory");
}

extern "C" __global__ void bulk_pipeline(const float* x, const float* y, float* out, int tiles) {
    __shared__ __align__(128) float xs[STAGES][TILE], ys[STAGES][TILE], result[TILE];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    x += blockIdx.x * tiles * TILE;
    y += blockIdx.x * tiles * TILE;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[s])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(address(&empty[s])) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128)
            for (int t = 0; t < tiles; t++) {
                int s = t % STAGES, round = t / STAGES;
                if (round) wait(address(&empty[s]), (round - 1) & 1);
                unsigned bar = address(&full[s]);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(2 * TILE * 4) : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                             ::"r"(address(xs[s])), "l"(x + t * TILE), "r"(TILE * 4), "r"(bar) : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                             ::"r"(address(ys[s])), "l"(y + t * TILE), "r"(TILE * 4), "r"(bar) : "memory");
            }
    } else {
        float a = 0.0f, b = 0.0f;
        for (int t = 0; t < tiles; t++) {
            int s = t % STAGES;
            wait(address(&full[s]), (t / STAGES) & 1);
            a = fmaf(xs[s][threadIdx.x], ys[s][threadIdx.x], a);
            b = fmaf(xs[s][threadIdx.x + 128], ys[s][threadIdx.x + 128], b);
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&empty[s])) : "memory");
        }
        result[threadIdx.x] = a;
        result[threadIdx.x + 128] = b;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                     ::"l"(out + blockIdx.x * TILE), "r"(address(result)), "r"(TILE * 4) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// The older handshake: mbarrier tokens by arrive and test_wait, with cp.async signalling the barrier.
extern "C" __global__ void token_pipeline(const int4* x, int4* out, int tiles) {
    __shared__ __align__(16) int4 tile[64];
    __shared__ unsigned long long bar;
    unsigned b = address(&bar);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(b) : "memory");
    __syncthreads();
    for (int t = 0; t < tiles; t++) {
        unsigned long long token;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address(&tile[threadIdx.x])), "l"(x + t * 64 + threadIdx.x) : "memory");
        asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(b) : "memory");
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(token) : "r"(b) : "memory");
        unsigned done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done) : "r"(b), "l"(token) : "memory");
        out[t * 64 + threadIdx.x] = tile[63 - threadIdx.x];
        __syncthreads();
    }
}
