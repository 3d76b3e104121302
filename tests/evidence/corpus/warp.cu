// Warp-aggregated atomics and votes: activemask, ballot, match.any, match.all, shfl.idx, elect by ffs.
extern "C" __global__ void compact(const int* x, int* out, int* count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || x[i] < 0) return;
    unsigned active = __activemask();
    int lane = threadIdx.x & 31, leader = __ffs(active) - 1, base = 0;
    if (lane == leader) base = atomicAdd(count, __popc(active));
    base = __shfl_sync(active, base, leader);
    out[base + __popc(active & ((1u << lane) - 1))] = x[i];
}

extern "C" __global__ void match_histogram(const int* keys, unsigned* bins) {
    int key = keys[blockIdx.x * blockDim.x + threadIdx.x];
    unsigned peers = __match_any_sync(~0u, key);
    if (__ffs(peers) - 1 == (int)(threadIdx.x & 31)) atomicAdd(&bins[key], __popc(peers));
}

extern "C" __global__ void votes(const int* x, unsigned* out) {
    int v = x[threadIdx.x], same;
    unsigned w = threadIdx.x >> 5;
    unsigned all_match = __match_all_sync(~0u, v, &same);
    unsigned r[5] = {__ballot_sync(~0u, v > 0), (unsigned)__all_sync(~0u, v > -5), (unsigned)__any_sync(~0u, v > 5),
                     all_match, (unsigned)same};
    unsigned rotated = __shfl_sync(~0u, v, threadIdx.x + 3, 8);
    unsigned odd = 0;
    if (threadIdx.x & 1) odd = __ballot_sync(0xaaaaaaaau, v & 2);
    out[64 + threadIdx.x * 2] = rotated;
    out[65 + threadIdx.x * 2] = odd;
    if ((threadIdx.x & 31) == 0)
        for (int i = 0; i < 5; i++) out[w * 5 + i] = r[i];
}
