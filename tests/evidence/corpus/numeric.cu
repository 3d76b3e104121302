// Arithmetic: f64, half and bfloat16 intrinsics, fp8, dp4a, integer tricks, division, and the CUDA math library.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void doubles(const double* x, const double* y, double* out) {
    int i = threadIdx.x;
    double a = x[i], b = y[i];
    double r[12] = {a + b, a * b - 1.0, a / b, sqrt(fabs(a)), fma(a, b, 0.5), fmin(a, b), fmax(a, b), floor(a),
                    ceil(b), trunc(a * b), rint(a), (double)(float)a};
    for (int j = 0; j < 12; j++) out[i * 16 + j] = r[j];
    out[i * 16 + 12] = (double)(long long)(a * 1e6);
    out[i * 16 + 13] = (double)(int)b;
    out[i * 16 + 14] = __dadd_rz(a, b);
    out[i * 16 + 15] = __dmul_ru(a, b);
}

extern "C" __global__ void halves(const __half2* x, const __half2* y, __half2* out) {
    int i = threadIdx.x;
    __half2 a = x[i], b = y[i];
    out[i * 8] = __hadd2_rn(a, b);
    out[i * 8 + 1] = __hmul2_rn(a, b);
    out[i * 8 + 2] = __hfma2(a, b, a);
    out[i * 8 + 3] = __hmax2(a, b);
    out[i * 8 + 4] = __hmin2(a, __hneg2(b));
    out[i * 8 + 5] = __hfma2_relu(a, b, b);
    out[i * 8 + 6] = __halves2half2(__float2half_rz(__half2float(a.x) * 1.001f), __hsub(a.y, b.y));
    out[i * 8 + 7] = __halves2half2(__int2half_rn(__half2int_rd(a.x)), a.y > b.x ? a.y : b.x);
}

extern "C" __global__ void bfloats(const __nv_bfloat162* x, const __nv_bfloat162* y, __nv_bfloat162* out) {
    int i = threadIdx.x;
    __nv_bfloat162 a = x[i], b = y[i];
    out[i * 6] = __hfma2(a, b, a);
    out[i * 6 + 1] = __hmax2(a, b);
    out[i * 6 + 2] = __hmin2(a, b);
    out[i * 6 + 3] = __floats2bfloat162_rn(__bfloat162float(a.x) * 1.01f, __bfloat162float(b.y) + 0.3f);
    out[i * 6 + 4] = __hadd2_rn(a, b);
    out[i * 6 + 5] = __habs2(__hneg2(a));
}

extern "C" __global__ void fp8(const float* x, unsigned char* e4m3, unsigned char* e5m2, float* back) {
    int i = threadIdx.x;
    __nv_fp8_e4m3 a(x[i]);
    __nv_fp8_e5m2 b(x[i]);
    e4m3[i] = a.__x;
    e5m2[i] = b.__x;
    back[i * 2] = float(a);
    back[i * 2 + 1] = float(b);
}

extern "C" __global__ void dot_products(const int* x, const int* y, int* out) {
    int i = threadIdx.x, a = x[i], b = y[i];
    out[i * 4] = __dp4a(a, b, 100);
    out[i * 4 + 1] = (int)__dp4a((unsigned)a, (unsigned)b, 7u);
    out[i * 4 + 2] = __dp2a_lo(a, b, 5);
    out[i * 4 + 3] = __dp2a_hi(a, b, 5);
}

extern "C" __global__ void bit_tricks(const unsigned* x, const unsigned* y, unsigned* out) {
    int i = threadIdx.x;
    unsigned a = x[i], b = y[i];
    unsigned long long w = (unsigned long long)a << 32 | b;
    unsigned r[16] = {(unsigned)__clz(a), (unsigned)__popc(a), __brev(a), (unsigned)__ffs(a), __byte_perm(a, b, 0x3715),
                      __funnelshift_l(a, b, b & 31), __funnelshift_rc(a, b, b & 63), __umulhi(a, b),
                      (unsigned)__mulhi((int)a, (int)b), (unsigned)__mul24((int)a, (int)b), __usad(a, b, 9u),
                      (unsigned)__clzll(w), (unsigned)__popcll(w), (unsigned)(__brevll(w) >> 7), (a >> (b & 15)) & 0xff,
                      (unsigned)__hadd((int)a, (int)b)};
    for (int j = 0; j < 16; j++) out[i * 16 + j] = r[j];
}

extern "C" __global__ void divisions(const int* x, const int* y, long long* out) {
    int i = threadIdx.x, a = x[i], b = y[i] | 1;
    unsigned ua = a, ub = b;
    long long la = (long long)a * 77777 + b, lb = (long long)b << 3 | 1;
    long long r[8] = {a / b, a % b, (long long)(ua / ub), (long long)(ua % ub), la / lb, la % lb, a / 7, (long long)(ua % 10)};
    for (int j = 0; j < 8; j++) out[i * 8 + j] = r[j];
}

extern "C" __global__ void math_library(const float* x, float* out) {
    int i = threadIdx.x;
    float a = x[i], p = fabsf(a) + 1e-3f;
    float r[12] = {sinf(a), cosf(a * 1000.0f), expf(a * 0.1f), logf(p), powf(p, 1.7f), tanhf(a), rsqrtf(p), 1.0f / p,
                   a / p, sqrtf(p), erff(a * 0.1f), exp2f(a * 0.2f)};
    for (int j = 0; j < 12; j++) out[i * 12 + j] = r[j];
}

extern "C" __global__ void fast_math(const float* x, float* out) {
    int i = threadIdx.x;
    float a = x[i], p = fabsf(a) + 1e-3f;
    float r[8] = {__sinf(a), __cosf(a), __expf(a * 0.1f), __logf(p), __fdividef(a, p), __frsqrt_rn(p), __powf(p, 0.7f),
                  __saturatef(a)};
    for (int j = 0; j < 8; j++) out[i * 8 + j] = r[j];
}

// One row a block: softmax with ex2.approx, then layer normalisation of the same row.
extern "C" __global__ void softmax_layernorm(const float* x, float* soft, float* norm, int n) {
    __shared__ float part[3];
    float m = -INFINITY, s = 0.0f, sq = 0.0f;
    const float* row = x + blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += 32) {
        m = fmaxf(m, row[i]);
        s += row[i];
        sq += row[i] * row[i];
    }
    for (int d = 16; d; d >>= 1) {
        m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
        s += __shfl_xor_sync(~0u, s, d);
        sq += __shfl_xor_sync(~0u, sq, d);
    }
    float e = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) e += __expf(row[i] - m);
    for (int d = 16; d; d >>= 1) e += __shfl_xor_sync(~0u, e, d);
    if (threadIdx.x == 0) {
        part[0] = __fdividef(1.0f, e);
        part[1] = s / n;
        part[2] = rsqrtf(sq / n - part[1] * part[1] + 1e-5f);
    }
    __syncwarp();
    for (int i = threadIdx.x; i < n; i += 32) {
        soft[blockIdx.x * n + i] = __expf(row[i] - m) * part[0];
        norm[blockIdx.x * n + i] = (row[i] - part[1]) * part[2];
    }
}
