// C = A B in bf16 with f32 sums, one warp a 16 x 16 tile: ldmatrix.x4, ldmatrix.x4.trans; a transpose by movmatrix.
#include <cuda_bf16.h>
extern "C" __global__ void gemm_ldmatrix(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int n, int k) {
    __shared__ __align__(16) __nv_bfloat16 as[16][24], bs[16][24];
    int lane = threadIdx.x;
    float acc[2][4] = {};
    unsigned sa = (unsigned)__cvta_generic_to_shared(&as[lane & 15][(lane >> 4) * 8]);
    unsigned sb = (unsigned)__cvta_generic_to_shared(&bs[lane & 15][(lane >> 4) * 8]);
    for (int t = 0; t < k; t += 16) {
        int row = lane >> 1, col = (lane & 1) * 8;
        *(uint4*)&as[row][col] = *(const uint4*)&a[(blockIdx.y * 16 + row) * k + t + col];
        *(uint4*)&bs[row][col] = *(const uint4*)&b[(t + row) * n + blockIdx.x * 16 + col];
        __syncwarp();
        unsigned fa[4], fb[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(sa) : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(fb[0]), "=r"(fb[1]), "=r"(fb[2]), "=r"(fb[3]) : "r"(sb) : "memory");
#pragma unroll
        for (int j = 0; j < 2; j++)
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                : "+f"(acc[j][0]), "+f"(acc[j][1]), "+f"(acc[j][2]), "+f"(acc[j][3])
                : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[j * 2]), "r"(fb[j * 2 + 1]));
        __syncwarp();
    }
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < 4; i++) {
            int row = blockIdx.y * 16 + (lane >> 2) + (i >> 1) * 8, col = blockIdx.x * 16 + j * 8 + (lane & 3) * 2 + (i & 1);
            c[row * n + col] = acc[j][i];
        }
}

extern "C" __global__ void transpose_8x8(const unsigned* x, unsigned* out) {
    unsigned v = x[blockIdx.x * 32 + threadIdx.x], t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
    out[blockIdx.x * 32 + threadIdx.x] = t;
}
