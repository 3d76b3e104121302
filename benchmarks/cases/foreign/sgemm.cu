// C = A B, f32, sizes that are multiples of 64: a 64 x 64 tile a CTA of 64 threads, 8 x 8 results a thread, 16 steps of
// k unrolled into 1,024 fma.
#define TILE 64
#define DEPTH 16
extern "C" __global__ void __launch_bounds__(64) sgemm(const float* a, const float* b, float* c, int n, int k) {
    __shared__ __align__(16) float as[DEPTH][TILE], bs[DEPTH][TILE];
    int x = threadIdx.x % 8, y = threadIdx.x / 8, row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    float sums[8][8] = {};
    for (int t = 0; t < k; t += DEPTH) {
        const float4* from = reinterpret_cast<const float4*>(a + (size_t)(row0 + threadIdx.x) * k + t);
#pragma unroll
        for (int i = 0; i < DEPTH / 4; i++) {
            float4 part = from[i];
            as[4 * i][threadIdx.x] = part.x;
            as[4 * i + 1][threadIdx.x] = part.y;
            as[4 * i + 2][threadIdx.x] = part.z;
            as[4 * i + 3][threadIdx.x] = part.w;
        }
#pragma unroll
        for (int i = 0; i < DEPTH; i++) bs[i][threadIdx.x] = b[(size_t)(t + i) * n + col0 + threadIdx.x];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            float left[8], right[8];
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                *reinterpret_cast<float4*>(left + j) = *reinterpret_cast<float4*>(&as[i][8 * y + j]);
                *reinterpret_cast<float4*>(right + j) = *reinterpret_cast<float4*>(&bs[i][8 * x + j]);
            }
#pragma unroll
            for (int m = 0; m < 8; m++)
#pragma unroll
                for (int o = 0; o < 8; o++) sums[m][o] = fmaf(left[m], right[o], sums[m][o]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
        for (int o = 0; o < 8; o += 4)
            *reinterpret_cast<float4*>(c + (size_t)(row0 + 8 * y + m) * n + col0 + 8 * x + o) =
                make_float4(sums[m][o], sums[m][o + 1], sums[m][o + 2], sums[m][o + 3]);
}
