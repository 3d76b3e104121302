// State spaces: local arrays with dynamic indices, structs in local memory, constant tables, dynamic shared memory,
// generic pointers that may be shared or global, vector accesses, initialised globals.
struct Particle { float position[3]; int id; double mass; };

extern "C" __global__ void local_sort(const int* x, int* out) {
    int a[16];
    for (int i = 0; i < 16; i++) a[i] = x[threadIdx.x * 16 + i];
    for (int i = 1; i < 16; i++) {
        int v = a[i], j = i;
        while (j > 0 && a[j - 1] > v) {
            a[j] = a[j - 1];
            j--;
        }
        a[j] = v;
    }
    for (int i = 0; i < 16; i++) out[threadIdx.x * 16 + i] = a[i];
}

__device__ __noinline__ void push(Particle* p, int axis, float by) {
    p->position[axis] += by;
    p->mass *= 1.5;
    p->id ^= axis;
}
extern "C" __global__ void local_struct(const Particle* in, Particle* out, const int* axis) {
    Particle p[2] = {in[threadIdx.x], in[threadIdx.x ^ 1]};
    int which = axis[threadIdx.x] & 1;
    for (int i = 0; i < 4; i++) push(&p[which], (axis[threadIdx.x] + i) % 3, 0.25f * i);
    out[threadIdx.x] = p[axis[threadIdx.x] >> 1 & 1];
}

__constant__ float coefficients[8] = {1.0f, -0.5f, 0.25f, 3.0f, -2.0f, 0.125f, 1e-3f, 7.0f};
__constant__ short steps[4] = {1, -2, 300, -32768};
__device__ int counters[4] = {10, 20, 30, 40};
__device__ const char message[] = "warp";
extern "C" __global__ void constants(const float* x, float* out, int* iout) {
    float v = x[threadIdx.x], y = coefficients[7];
    for (int i = 6; i >= 0; i--) y = y * v + coefficients[i];
    out[threadIdx.x] = y * coefficients[threadIdx.x & 7];
    iout[threadIdx.x] = steps[threadIdx.x & 3] + counters[threadIdx.x >> 1 & 3] + message[threadIdx.x % 5];
}

extern __shared__ unsigned char dynamic[];
extern "C" __global__ void dynamic_shared(const float* x, float* out, int n) {
    float* values = (float*)dynamic;
    unsigned short* order = (unsigned short*)(values + n);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        values[i] = x[blockIdx.x * n + i];
        order[i] = (unsigned short)((i * 7 + 3) % n);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = values[order[i]];
}

__device__ __noinline__ int sum_at(const int* p, int n) {
    int s = 0;
    for (int i = 0; i < n; i++) s += p[i];
    return s;
}
extern "C" __global__ void generic_pointers(const int* x, int* out) {
    __shared__ int tile[64];
    int own[4] = {1, 2, 3, (int)threadIdx.x};
    tile[threadIdx.x] = -x[threadIdx.x];
    __syncthreads();
    const int* p = threadIdx.x % 3 == 0 ? x : threadIdx.x % 3 == 1 ? tile : own;
    out[threadIdx.x] = sum_at(p + (threadIdx.x & 1), 3) + __isShared(p) * 1000 + __isGlobal(p) * 2000 + __isLocal(p) * 4000;
}

extern "C" __global__ void vectors(const float4* x, const uchar4* bytes, float2* sums, longlong2* wide, short2* shorts) {
    float4 v = x[threadIdx.x];
    uchar4 b = bytes[threadIdx.x];
    sums[threadIdx.x] = make_float2(v.x + v.z, v.y + v.w);
    wide[threadIdx.x] = make_longlong2((long long)b.x << 40 | b.y, -(long long)b.z * b.w);
    shorts[threadIdx.x] = make_short2((short)(b.x - b.y), (short)(b.z * b.w));
}
