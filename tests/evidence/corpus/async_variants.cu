// sm_90: the rarer forms. cp.async of every size with zero fill, a multicast bulk copy, mbarrier counts,
// remote arrivals and dropped ones, vector st.async and other red.async.
#include <cstdint>
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned peer(unsigned a, unsigned rank) {
    unsigned mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(a), "r"(rank));
    return mapped;
}
__device__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ void init(uint64_t* bar, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(bar)), "r"(count) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void wait(uint64_t* bar, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(address(bar)), "r"(parity) : "memory");
}

// Thread t copies 4, 8 and 16 bytes, of which only the first valid[t] come from memory; the rest must be zero.
extern "C" __global__ void copy_sizes(const unsigned char* x, const unsigned* valid, unsigned* out) {
    __shared__ __align__(16) unsigned tile[32][8];
    unsigned t = threadIdx.x, n = valid[t];
    for (int i = 0; i < 8; i++) tile[t][i] = 0xdeadbeef;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address(&tile[t][0])), "l"(x + t * 32), "r"(min(n, 4u)) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address(&tile[t][2])), "l"(x + t * 32 + 8), "r"(min(n, 8u)) : "memory");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(&tile[t][4])), "l"(x + t * 32 + 16), "r"(n) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < 8; i++) out[t * 8 + i] = tile[t ^ 1][i];
}

// Rank 0 sends each tile to both blocks of the cluster by one copy.
extern "C" __global__ void __cluster_dims__(2, 1, 1) multicast(const float* x, float* out) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t bar;
    unsigned rank = cluster_rank();
    if (threadIdx.x == 0) {
        init(&bar, 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&bar)), "r"(256) : "memory");
    }
    cluster_sync();
    if (rank == 0 && threadIdx.x == 0) {
        uint16_t mask = 3;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                     ::"r"(address(tile)), "l"(x + blockIdx.x / 2 * 64), "r"(256), "r"(address(&bar)), "h"(mask) : "memory");
    }
    wait(&bar, 0);
    atomicAdd(&out[threadIdx.x], tile[threadIdx.x] * (rank + 1));
    cluster_sync();
}

// Counts: an arrival for several, an arrival that may not complete, a dropped one that lowers the next phase's count.
extern "C" __global__ void arrival_counts(unsigned* out) {
    __shared__ uint64_t bar;
    __shared__ volatile unsigned log[8];
    uint64_t token;
    unsigned pending, b = address(&bar);
    if (threadIdx.x == 0) init(&bar, 40);
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 7;" : "=l"(token) : "r"(b) : "memory");
        asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(token));
        log[0] = pending;
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;" : "=l"(token) : "r"(b) : "memory");
        asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(token));
        log[1] = pending;
    }
    __syncwarp();
    if (threadIdx.x < 31) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
    wait(&bar, 0);
    log[2] = 1;
    __syncthreads();
    // 40 are expected again; dropping 8 leaves 32 to arrive now, and 32 expected from the next phase on.
    if (threadIdx.x < 8) asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
    wait(&bar, 1);
    __syncwarp();
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(b) : "memory");
    wait(&bar, 0);
    __syncwarp();  // nobody still looks at it
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(b) : "memory");
        out[0] = log[0];
        out[1] = log[1];
        out[2] = log[2];
    }
}

// Every thread stores into its peer: four words at a time, two words, and counters; arrivals across the cluster.
extern "C" __global__ void __cluster_dims__(2, 1, 1) remote_stores(const uint4* x, uint4* out, unsigned long long* wide, unsigned* counters) {
    __shared__ __align__(16) uint4 inbox[32];
    __shared__ __align__(8) unsigned long long pairs[32];
    __shared__ unsigned count[3];
    __shared__ uint64_t bytes, turn;
    unsigned t = threadIdx.x, other = cluster_rank() ^ 1;
    if (t < 3) count[t] = t == 1 ? 1000 : 0;
    if (t == 0) {
        init(&bytes, 1);
        init(&turn, 32);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&bytes)), "r"(32 * (16 + 8 + 12)) : "memory");
    }
    cluster_sync();
    uint4 v = x[blockIdx.x * 32 + t];
    unsigned bar = peer(address(&bytes), other);
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(peer(address(&inbox[t]), other)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar) : "memory");
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
                 ::"r"(peer(address(&pairs[31 - t]), other)), "l"((unsigned long long)v.x << 32 | v.y), "r"(bar) : "memory");
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%0], %1, [%2];"
                 ::"r"(peer(address(&count[0]), other)), "r"(20), "r"(bar) : "memory");
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.min.u32 [%0], %1, [%2];"
                 ::"r"(peer(address(&count[1]), other)), "r"(v.x), "r"(bar) : "memory");
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.xor.b32 [%0], %1, [%2];"
                 ::"r"(peer(address(&count[2]), other)), "r"(v.y), "r"(bar) : "memory");
    wait(&bytes, 0);
    out[blockIdx.x * 32 + t] = inbox[t];
    wide[blockIdx.x * 32 + t] = pairs[t];
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer(address(&turn), other)) : "memory");
    wait(&turn, 0);
    if (t < 3) counters[blockIdx.x * 3 + t] = count[t];
    cluster_sync();
}
