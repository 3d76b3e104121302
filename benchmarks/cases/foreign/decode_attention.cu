// Decode attention as written by hand: a CTA a head, a warp every fourth position, online softmax, one merge.
#define DIM 128
#define WARPS 4
extern "C" __global__ void decode_attention(const float* q, const float* k, const float* v, float* out, int length) {
    __shared__ float maxima[WARPS], sums[WARPS];
    __shared__ float4 partial[WARPS][32];
    int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float4* keys = reinterpret_cast<const float4*>(k) + (size_t)head * length * (DIM / 4) + lane;
    const float4* values = reinterpret_cast<const float4*>(v) + (size_t)head * length * (DIM / 4) + lane;
    float4 x = reinterpret_cast<const float4*>(q)[head * (DIM / 4) + lane];
    float top = -INFINITY, sum = 0.0f;
    float4 acc = make_float4(0, 0, 0, 0);
    for (int t = warp; t < length; t += WARPS) {
        float4 y = keys[t * (DIM / 4)], z = values[t * (DIM / 4)];
        float score = x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
        for (int step = 16; step; step /= 2) score += __shfl_xor_sync(0xffffffff, score, step);
        score *= 0.08838834764831845f;
        float higher = fmaxf(top, score), keep = __expf(top - higher), weight = __expf(score - higher);
        sum = sum * keep + weight;
        acc.x = acc.x * keep + weight * z.x;
        acc.y = acc.y * keep + weight * z.y;
        acc.z = acc.z * keep + weight * z.z;
        acc.w = acc.w * keep + weight * z.w;
        top = higher;
    }
    if (lane == 0) maxima[warp] = top, sums[warp] = sum;
    partial[warp][lane] = acc;
    __syncthreads();
    if (warp == 0) {
        float higher = -INFINITY, total = 0.0f;
        float4 result = make_float4(0, 0, 0, 0);
        for (int w = 0; w < WARPS; w++) higher = fmaxf(higher, maxima[w]);
        for (int w = 0; w < WARPS; w++) {
            float factor = maxima[w] == -INFINITY ? 0.0f : __expf(maxima[w] - higher);
            float4 part = partial[w][lane];
            total += sums[w] * factor;
            result.x += part.x * factor;
            result.y += part.y * factor;
            result.z += part.z * factor;
            result.w += part.w * factor;
        }
        float inverse = total > 0.0f ? 1.0f / total : 0.0f;
        reinterpret_cast<float4*>(out)[head * (DIM / 4) + lane] =
            make_float4(result.x * inverse, result.y * inverse, result.z * inverse, result.w * inverse);
    }
}
