// What CUDA's headers and nvcc's library bring: inline assembly on half pairs, 128-bit division, local arrays.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void half_functions(const __half2* x, __half2* out) {
    __half2 a = x[threadIdx.x], b = __habs2(a), *to = out + threadIdx.x * 8;
    to[0] = h2exp(a), to[1] = h2exp2(a), to[2] = h2log(b), to[3] = h2rcp(b);
    to[4] = h2sqrt(b), to[5] = h2rsqrt(b), to[6] = h2rint(a), to[7] = h2exp10(a);
}

extern "C" __global__ void bfloat_functions(const __nv_bfloat162* x, __nv_bfloat162* out) {
    __nv_bfloat162 a = x[threadIdx.x], b = __habs2(a), *to = out + threadIdx.x * 4;
    to[0] = h2exp(a), to[1] = h2log2(b), to[2] = h2sqrt(b), to[3] = h2rint(a);
}

extern "C" __global__ void wide_division(const unsigned long long* x, unsigned long long* out) {
    unsigned __int128 a = (unsigned __int128)x[3 * threadIdx.x] << 64 | x[3 * threadIdx.x + 1];
    unsigned __int128 b = ((unsigned __int128)x[3 * threadIdx.x + 2] << (threadIdx.x % 64)) + 1;
    unsigned __int128 quotient = a / b, rest = a % b;
    unsigned long long* to = out + 4 * threadIdx.x;
    to[0] = quotient, to[1] = quotient >> 64, to[2] = rest, to[3] = rest >> 64;
}

extern "C" __global__ void insertion_sort(const int* x, int* out, int n) {
    int a[37];
    for (int k = 0; k < 37; k++) a[k] = x[(threadIdx.x + k) % n];
    for (int k = 1; k < 37; k++) {
        int value = a[k], j = k - 1;
        while (j >= 0 && a[j] > value) a[j + 1] = a[j], j--;
        a[j + 1] = value;
    }
    for (int k = 0; k < 37; k++) out[threadIdx.x * 37 + k] = a[(k * 5 + threadIdx.x) % 37];
}
