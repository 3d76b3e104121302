// C = A B^T, f16 in, f32 out, 32 x 32 tile a block of 4 warps: cp.async in two stages, mma.m16n8k16.
#include <cuda_fp16.h>
__device__ void copy_async(void* to, const void* from) {
    unsigned s = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(s), "l"(from) : "memory");
}

__device__ void load_tile(__half (*tile)[40], const __half* from, int ld) {
    int row = threadIdx.x >> 2, col = (threadIdx.x & 3) * 8;
    copy_async(&tile[row][col], from + row * ld + col);
}

extern "C" __global__ void __launch_bounds__(128) gemm_mma(const __half* a, const __half* b, float* c, int n, int k) {
    __shared__ __align__(16) __half as[2][32][40], bs[2][32][40];
    const __half* pa = a + blockIdx.y * 32 * k;
    const __half* pb = b + blockIdx.x * 32 * k;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    int m0 = (warp >> 1) * 16, n0 = (warp & 1) * 16;
    float acc[2][4] = {};
    load_tile(as[0], pa, k);
    load_tile(bs[0], pb, k);
    asm volatile("cp.async.commit_group;" ::: "memory");
    int tiles = k / 32;
    for (int t = 0; t < tiles; t++) {
        if (t + 1 < tiles) {
            load_tile(as[(t + 1) & 1], pa + (t + 1) * 32, k);
            load_tile(bs[(t + 1) & 1], pb + (t + 1) * 32, k);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        __half(*sa)[40] = as[t & 1];
        __half(*sb)[40] = bs[t & 1];
#pragma unroll
        for (int kk = 0; kk < 32; kk += 16) {
            unsigned fa[4], fb[2];
            fa[0] = *(unsigned*)&sa[m0 + g][kk + q * 2];
            fa[1] = *(unsigned*)&sa[m0 + g + 8][kk + q * 2];
            fa[2] = *(unsigned*)&sa[m0 + g][kk + q * 2 + 8];
            fa[3] = *(unsigned*)&sa[m0 + g + 8][kk + q * 2 + 8];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                fb[0] = *(unsigned*)&sb[n0 + j * 8 + g][kk + q * 2];
                fb[1] = *(unsigned*)&sb[n0 + j * 8 + g][kk + q * 2 + 8];
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(acc[j][0]), "+f"(acc[j][1]), "+f"(acc[j][2]), "+f"(acc[j][3])
                    : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
            }
        }
        __syncthreads();
    }
    float* out = c + (blockIdx.y * 32 + m0 + g) * n + blockIdx.x * 32 + n0 + q * 2;
    for (int j = 0; j < 2; j++) {
        *(float2*)(out + j * 8) = make_float2(acc[j][0], acc[j][1]);
        *(float2*)(out + j * 8 + 8 * n) = make_float2(acc[j][2], acc[j][3]);
    }
}
