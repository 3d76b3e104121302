// Sums and maxima over warps and blocks: shfl.down, shfl.bfly, redux, shared memory, bar.sync, bar.red.
extern "C" __global__ void warp_sum(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) out[i >> 5] = v;
}

extern "C" __global__ void block_sum(const float* x, float* out, int n) {
    __shared__ float part[32];
    float v = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
#pragma unroll
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
#pragma unroll
        for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
        if (threadIdx.x == 0) out[blockIdx.x] = v;
    }
}

extern "C" __global__ void tree_max(const int* x, int* out) {
    __shared__ int part[128];
    part[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
    for (int half = 64; half; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] = max(part[threadIdx.x], part[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

extern "C" __global__ void redux_all(const int* x, int* out) {
    int v = x[threadIdx.x], warp = threadIdx.x >> 5;
    unsigned u = v;
    int results[6] = {__reduce_add_sync(~0u, v), __reduce_min_sync(~0u, v), __reduce_max_sync(~0u, v),
                      (int)__reduce_and_sync(~0u, u), (int)__reduce_or_sync(~0u, u), (int)__reduce_xor_sync(~0u, u)};
    if ((threadIdx.x & 31) == 0)
        for (int i = 0; i < 6; i++) out[warp * 6 + i] = results[i];
}

extern "C" __global__ void block_votes(const int* x, int* out) {
    int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    int count = __syncthreads_count(v > 0), any = __syncthreads_or(v > 90), all = __syncthreads_and(v > -90);
    if (threadIdx.x == 0) {
        out[blockIdx.x * 3] = count;
        out[blockIdx.x * 3 + 1] = any != 0;
        out[blockIdx.x * 3 + 2] = all != 0;
    }
}

// The last block to finish adds the partial sums of all: a ticket by atomicInc behind a fence.
__device__ unsigned ticket = 0;
extern "C" __global__ void single_launch_sum(const float* x, volatile float* partial, float* out, int n) {
    __shared__ float sum;
    __shared__ bool last;
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&sum, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&ticket, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float total = 0.0f;
        for (unsigned b = 0; b < gridDim.x; b++) total += partial[b];
        *out = total;
    }
}
