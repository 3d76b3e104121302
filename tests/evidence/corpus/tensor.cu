// sm_90: bulk tensor copies through maps in the parameter block: a transposition by swizzled boxes whose edges lie
// outside of the arrays, sums of boxes that reduce into one array, and a box that one CTA sends to its whole cluster.
#define TILE 32
struct alignas(64) Map { unsigned long long opaque[16]; };
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait(unsigned bar, unsigned parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
                 ::"r"(bar), "r"(parity) : "memory");
}
__device__ void expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ void begin(unsigned bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// 32 x 32 floats are 4,096 bytes: rows of 128 bytes, whose 16-byte parts the 128-byte swizzle exchanges.
__device__ float& swizzled(float* tile, int row, int column) {
    return tile[row * TILE + ((column / 4 ^ row % 8) * 4 + column % 4)];
}

extern "C" __global__ void tensor_transpose(const __grid_constant__ Map from, const __grid_constant__ Map to) {
    __shared__ __align__(1024) float in[TILE * TILE], out[TILE * TILE];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) begin(address(&bar));
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&from) : "memory");
        expect(address(&bar), sizeof(in));
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(address(in)), "l"(&from), "r"(blockIdx.x * TILE), "r"(blockIdx.y * TILE), "r"(address(&bar)) : "memory");
    }
    wait(address(&bar), 0);
    for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x)
        swizzled(out, i % TILE, i / TILE) = swizzled(in, i / TILE, i % TILE);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                     ::"l"(&to), "r"(blockIdx.y * TILE), "r"(blockIdx.x * TILE), "r"(address(out)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

// Every CTA adds its planes of a 3-dimensional array, two at a time in two buffers, into one plane.
extern "C" __global__ void tensor_sum(const __grid_constant__ Map planes, const __grid_constant__ Map total, int count) {
    __shared__ __align__(128) int tile[2][8 * 16];
    __shared__ unsigned long long full[2];
    if (threadIdx.x == 0) begin(address(&full[0])), begin(address(&full[1]));
    __syncthreads();
    int first = blockIdx.x * count;
    if (threadIdx.x == 0) {
        for (int n = 0; n < count; n++) {
            unsigned bar = address(&full[n % 2]);
            if (n > 1) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            expect(bar, sizeof(tile[0]));
            asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                         ::"r"(address(tile[n % 2])), "l"(&planes), "r"(0), "r"(0), "r"(first + n), "r"(bar) : "memory");
            wait(bar, n / 2 & 1);
            asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
                         ::"l"(&total), "r"(0), "r"(0), "r"(address(tile[n % 2])) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

extern "C" __global__ void __cluster_dims__(2) tensor_multicast(const __grid_constant__ Map from, int* out) {
    __shared__ __align__(128) int tile[4 * 32];
    __shared__ unsigned long long bar;
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) begin(address(&bar)), expect(address(&bar), sizeof(tile));
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x == 0 && rank == 0)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                     ::"r"(address(tile)), "l"(&from), "r"(0), "r"(blockIdx.x / 2 * 4), "r"(address(&bar)), "h"((unsigned short)3) : "memory");
    wait(address(&bar), 0);
    out[blockIdx.x * 128 + threadIdx.x] = tile[threadIdx.x] + rank;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
