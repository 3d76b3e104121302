// Prefix sums: within a block (shfl.up and shared memory), and over the grid in one launch by look-back.
__device__ int block_scan(int v, int* warp_sums) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        int up = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v += up;
    }
    if (lane == 31) warp_sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int s = lane < blockDim.x / 32 ? warp_sums[lane] : 0;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            int up = __shfl_up_sync(0xffffffffu, s, d);
            if (lane >= d) s += up;
        }
        warp_sums[lane] = s;
    }
    __syncthreads();
    return v + (warp ? warp_sums[warp - 1] : 0);
}

extern "C" __global__ void inclusive_scan(const int* x, int* out) {
    __shared__ int warp_sums[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = block_scan(x[i], warp_sums);
}

// state[0] hands out tiles in order, so that a tile only ever waits for tiles that have started;
// state[1 + t] is (flag << 62 | sum): flag 1 for the tile's own sum, 2 for the sum of all tiles up to it.
extern "C" __global__ void lookback_scan(const int* x, int* out, unsigned long long* state, int n) {
    __shared__ int warp_sums[32];
    __shared__ unsigned tile;
    __shared__ int before;
    if (threadIdx.x == 0) tile = (unsigned)atomicAdd(&state[0], 1ull);
    __syncthreads();
    int i = tile * blockDim.x + threadIdx.x;
    int v = block_scan(i < n ? x[i] : 0, warp_sums);
    if (threadIdx.x == blockDim.x - 1) {
        volatile unsigned long long* flags = state + 1;
        flags[tile] = (1ull << 62) | (unsigned)v;
        __threadfence();
        unsigned sum = 0;
        for (int t = (int)tile - 1; t >= 0;) {
            unsigned long long s = flags[t];
            if (s >> 62 == 0) continue;
            sum += (unsigned)s;
            if (s >> 62 == 2) break;
            t--;
        }
        flags[tile] = (2ull << 62) | (sum + (unsigned)v);
        before = (int)sum;
    }
    __syncthreads();
    if (i < n) out[i] = v + before;
}
