// sm_90: clusters. Distributed shared memory by cooperative groups, and pushed results: st.async, red.async on an mbarrier.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Each block counts its part; block r of the cluster then owns a quarter of the bins and reads it from its peers.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_histogram(const unsigned char* x, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    cg::cluster_group cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank(), size = cluster.num_blocks();
    for (int b = threadIdx.x; b < 256; b += blockDim.x) local[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1u);
    cluster.sync();
    for (int b = rank * 64 + threadIdx.x; b < (rank + 1) * 64; b += blockDim.x) {
        unsigned sum = 0;
        for (unsigned r = 0; r < size; r++) sum += *cluster.map_shared_rank(&local[b], r);
        atomicAdd(&bins[b], sum);
    }
    cluster.sync();
}

// Atomics straight into a peer's shared memory; the cluster's size comes from the launch.
extern "C" __global__ void cluster_ring(const int* x, int* out) {
    __shared__ int sum[32];
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x < 32) sum[threadIdx.x] = 0;
    cluster.sync();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    int* remote = cluster.map_shared_rank(sum, next);
    atomicAdd(&remote[threadIdx.x & 31], x[blockIdx.x * blockDim.x + threadIdx.x]);
    cluster.sync();
    if (threadIdx.x < 32) out[blockIdx.x * 32 + threadIdx.x] = sum[threadIdx.x];
}

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned map_rank(unsigned address, unsigned rank) {
    unsigned mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

// Every block sends value [t] to block t % size; the receiver waits for the bytes of all on its own mbarrier.
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_push(const int* x, int* out, int* sums) {
    __shared__ int inbox[2][32];
    __shared__ unsigned total;
    __shared__ unsigned long long bar;
    unsigned rank, b = shared_address(&bar);
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        total = 0;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(2 * 32 * 4 + 2 * 32 * 4) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    int to = threadIdx.x & 1, slot = threadIdx.x >> 1;
    int v = x[blockIdx.x * 64 + threadIdx.x];
    unsigned there = map_rank(shared_address(&inbox[rank][slot]), to), bar_there = map_rank(b, to);
    unsigned total_there = map_rank(shared_address(&total), to);
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 ::"r"(there), "r"(v), "r"(bar_there) : "memory");
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
                 ::"r"(total_there), "r"(v), "r"(bar_there) : "memory");
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(b) : "memory");
    out[blockIdx.x * 64 + threadIdx.x] = inbox[threadIdx.x >> 5][threadIdx.x & 31];
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
