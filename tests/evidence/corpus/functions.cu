// Device functions that stay calls: struct parameters and results, pointers to locals, several returns, a call chain.
struct Vec3 { float x, y, z; };
struct Mixed { char tag; double weight; short parts[3]; Vec3 at; };

__device__ __noinline__ Vec3 cross(Vec3 a, Vec3 b) {
    return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
__device__ __noinline__ float dot(const Vec3& a, const Vec3& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ __noinline__ float triple(Vec3 a, Vec3 b, Vec3 c) {
    Vec3 n = cross(a, b);
    return dot(n, c);
}
__device__ __noinline__ double weigh(Mixed m) {
    if (m.tag == 'n') return -m.weight;
    double sum = 0;
    for (int i = 0; i < 3; i++) sum += m.parts[i];
    return m.tag == 's' ? sum : sum * m.weight + m.at.y;
}
__device__ __noinline__ int gcd(int a, int b) {
    while (b) {
        int t = a % b;
        a = b;
        b = t;
    }
    return a;
}
__device__ __noinline__ void swap(int* a, int* b) {
    int t = *a;
    *a = *b;
    *b = t;
}
__device__ __noinline__ float warp_total(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

extern "C" __global__ void triple_product(const Vec3* v, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = triple(v[i * 3], v[i * 3 + 1], v[i * 3 + 2]);
}
extern "C" __global__ void mixed_struct(Mixed scale, const Mixed* items, double* out) {
    Mixed m = items[threadIdx.x];
    m.weight *= scale.weight;
    m.parts[1] += scale.parts[2];
    out[threadIdx.x] = weigh(m) + weigh(scale);
}
extern "C" __global__ void gcd_sorted(const int2* pairs, int* out, float* total) {
    int a = pairs[threadIdx.x].x, b = pairs[threadIdx.x].y;
    if (a < b) swap(&a, &b);
    int g = gcd(a, b);
    out[threadIdx.x] = g;
    float t = warp_total((float)g);
    if (threadIdx.x % 32 == 0) total[threadIdx.x / 32] = t;
}
