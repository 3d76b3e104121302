// sm_90a: C[64, 64] = A[64, K] B with f16 inputs and f32 sums by one warpgroup: shared-memory descriptors of three kinds.
#include <cuda_fp16.h>
#include <cstdint>
// 128-byte swizzle: the 16-byte column within a 128-byte row is xored with the row's index modulo 8.
__device__ int swizzled(int row, int column) { return row * 64 + (((column >> 3) ^ (row & 7)) << 3) + (column & 7); }
__device__ uint64_t descriptor(const void* p, unsigned leading, unsigned stride, unsigned swizzle) {
    unsigned s = (unsigned)__cvta_generic_to_shared(p);
    return (uint64_t)((s & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | (uint64_t)swizzle << 62;
}
__device__ void arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void finish() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
#define REGS8(i) "%" #i "0,%" #i "1,%" #i "2,%" #i "3,%" #i "4,%" #i "5,%" #i "6,%" #i "7,%" #i "8,%" #i "9"
#define SUMS "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," REGS8(1) "," REGS8(2) ",%30,%31}"
#define OUT(d)                                                                                                       \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),      \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),       \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),      \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])

template <int TransB>
__device__ void multiply(float* d, uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " SUMS ", %32, %33, p, 1, 1, 0, %35;\n}"
                 : OUT(d) : "l"(a), "l"(b), "r"(accumulate), "n"(TransB));
}
__device__ void multiply_registers(float* d, const uint32_t* a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " SUMS ", {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : OUT(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ void store(float* c, const float* d) {
    int lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16 + (lane >> 2);
    for (int i = 0; i < 32; i++) c[(row + (i >> 1 & 1) * 8) * 64 + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1)] = d[i];
}

// B is [64, K] (K-major); both operands swizzled by 128 bytes.
extern "C" __global__ void __launch_bounds__(128) wgmma_swizzled(const __half* a, const __half* b, float* c, int k) {
    __shared__ __align__(1024) __half as[64 * 64], bs[64 * 64];
    float d[32] = {};
    for (int t = 0; t < k; t += 64) {
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            as[swizzled(i >> 6, i & 63)] = a[(i >> 6) * k + t + (i & 63)];
            bs[swizzled(i >> 6, i & 63)] = b[(i >> 6) * k + t + (i & 63)];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        arrive();
        for (int kk = 0; kk < 4; kk++)
            multiply<0>(d, descriptor(as + kk * 16, 16, 1024, 1), descriptor(bs + kk * 16, 16, 1024, 1), t + kk);
        finish();
        __syncthreads();
    }
    store(c, d);
}

// B is [K, 64] (N-major, transposed by the instruction); both operands swizzled by 128 bytes.
extern "C" __global__ void __launch_bounds__(128) wgmma_transposed(const __half* a, const __half* b, float* c, int k) {
    __shared__ __align__(1024) __half as[64 * 64], bs[64 * 64];
    float d[32] = {};
    for (int t = 0; t < k; t += 64) {
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            as[swizzled(i >> 6, i & 63)] = a[(i >> 6) * k + t + (i & 63)];
            bs[swizzled(i >> 6, i & 63)] = b[(t + (i >> 6)) * 64 + (i & 63)];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        arrive();
        for (int kk = 0; kk < 4; kk++)
            multiply<1>(d, descriptor(as + kk * 16, 16, 1024, 1), descriptor(bs + kk * 16 * 64, 16, 1024, 1), 1);
        finish();
        __syncthreads();
    }
    store(c, d);
}

// No swizzle: 8 x 8 core matrices of 128 contiguous bytes; A fragments in registers.
extern "C" __global__ void __launch_bounds__(128) wgmma_registers(const __half* a, const __half* b, float* c) {
    __shared__ __align__(128) __half bs[64 * 16];
    float d[32] = {};
    for (int i = threadIdx.x; i < 64 * 16; i += 128) {
        int n = i >> 4, k = i & 15;
        bs[(n >> 3) * 128 + (k >> 3) * 64 + (n & 7) * 8 + (k & 7)] = b[i];
    }
    int lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16 + (lane >> 2), column = (lane & 3) * 2;
    uint32_t fa[4];
    for (int i = 0; i < 4; i++) fa[i] = *(const uint32_t*)&a[(row + (i & 1) * 8) * 16 + column + (i >> 1) * 8];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    arrive();
    multiply_registers(d, fa, descriptor(bs, 128, 256, 0));
    finish();
    store(c, d);
}
