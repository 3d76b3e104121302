// Histogram in shared and global memory; every atomic operation; a compare-and-swap loop; a lock taken lane by lane.
#include <cuda_fp16.h>
extern "C" __global__ void histogram(const unsigned char* x, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    for (int b = threadIdx.x; b < 256; b += blockDim.x) local[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x)
        if (local[b]) atomicAdd(&bins[b], local[b]);
}

// Order-free results only, so that any schedule gives the same memory. out[0..13] must hold the initial values.
extern "C" __global__ void every_atomic(const int* x, int* out, unsigned* uout, unsigned long long* wide, float* sums) {
    int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    unsigned u = (unsigned)v;
    atomicAdd(&out[0], v);
    atomicSub(&out[1], v);
    atomicMin(&out[2], v);
    atomicMax(&out[3], v);
    atomicAnd(&out[4], v);
    atomicOr(&out[5], v);
    atomicXor(&out[6], v);
    atomicMin(&uout[0], u);
    atomicMax(&uout[1], u);
    atomicInc(&uout[2], 6u);
    atomicDec(&uout[3], 9u);
    atomicAdd(&wide[0], (unsigned long long)u << 20);
    atomicMax(&wide[1], (unsigned long long)u << 20);
    atomicMin((long long*)&wide[2], (long long)v * 1000003);
    atomicXor(&wide[3], (unsigned long long)u * 0x100000001ull);
    atomicAdd(&sums[0], (float)(v & 15));
    atomicAdd((double*)&wide[4], (double)(v & 15));
    atomicAdd((__half2*)&sums[1], __floats2half2_rn((float)(v & 1), 1.0f));
    atomicAdd_block(&uout[4], u & 3);
    atomicAdd_system(&uout[5], u & 3);
}

extern "C" __global__ void cas_product(const float* x, float* out) {
    int* cell = (int*)out;
    int seen = *(volatile int*)cell, old;
    do {
        old = seen;
        seen = atomicCAS(cell, old, __float_as_int(__int_as_float(old) * x[threadIdx.x]));
    } while (seen != old);
}

extern "C" __global__ void lane_lock(int* lock, volatile int* counter, int* order) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    int ticket = *counter;
    *counter = ticket + 1;
    order[ticket] = blockIdx.x * blockDim.x + threadIdx.x;
    __threadfence();
    atomicExch(lock, 0);
}
