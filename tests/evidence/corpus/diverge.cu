// Divergence: binary search, Collatz lengths, nested loops with break and early return, a switch (brx), barriers by id, a sort.
extern "C" __global__ void binary_search(const int* sorted, const int* keys, int* found, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m) return;
    int low = 0, high = n;
    while (low < high) {
        int mid = (low + high) >> 1;
        if (sorted[mid] < keys[i]) low = mid + 1;
        else high = mid;
    }
    found[i] = low < n && sorted[low] == keys[i] ? low : -1;
}

extern "C" __global__ void collatz(const unsigned* x, unsigned* steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long v = x[i];
    unsigned count = 0;
    while (v != 1) {
        v = v & 1 ? 3 * v + 1 : v >> 1;
        count++;
    }
    steps[i] = count;
}

// Smallest prime factor by trial division, and the number of divisors.
extern "C" __global__ void factors(const unsigned* x, uint2* out) {
    unsigned v = x[blockIdx.x * blockDim.x + threadIdx.x], least = v, divisors = 0;
    for (unsigned d = 2; d * d <= v; d++)
        if (v % d == 0) {
            least = d;
            break;
        }
    for (unsigned d = 1; d <= v; d++) {
        if (v % d) continue;
        divisors++;
        if (divisors > 30) break;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = make_uint2(least, divisors);
}

extern "C" __global__ void interpreter(const int* program, const int* x, int* out, int length) {
    int a = x[threadIdx.x], b = threadIdx.x;
    for (int pc = 0; pc < length; pc++) {
        switch (program[(threadIdx.x & 3) * length + pc]) {
            case 0: a += b; break;
            case 1: a -= b; break;
            case 2: a *= 3; break;
            case 3: b = a ^ (b << 1); break;
            case 4: { int t = a; a = b; b = t; break; }
            case 5: a = a < 0 ? -a : a; break;
            case 6: b += pc; break;
            case 7: if (a & 1) a = 3 * a + 1; else a >>= 1; break;
            case 8: pc += a & 1; break;
            case 9: out[threadIdx.x] = a; return;
            default: b = ~b; break;
        }
    }
    out[threadIdx.x] = a + b;
}

// Two producer warps hand tiles to two consumer warps through bar.arrive / bar.sync pairs.
extern "C" __global__ void named_barriers(const int* x, int* out, int rounds) {
    __shared__ int tile[2][64];
    int t = threadIdx.x & 63;
    bool producer = threadIdx.x < 64;
    for (int r = 0; r < rounds; r++) {
        int slot = r & 1;
        if (producer) {
            if (r >= 2) asm volatile("bar.sync %0, 128;" ::"r"(3 + slot) : "memory");
            tile[slot][t] = x[r * 64 + t];
            __threadfence_block();
            asm volatile("bar.arrive %0, 128;" ::"r"(1 + slot) : "memory");
        } else {
            asm volatile("bar.sync %0, 128;" ::"r"(1 + slot) : "memory");
            out[r * 64 + t] = tile[slot][63 - t] * 2;
            if (r + 2 < rounds) asm volatile("bar.arrive %0, 128;" ::"r"(3 + slot) : "memory");
        }
    }
}

// 512 numbers by 256 threads: of each pair that lies j apart one thread compares, so that active lanes leave holes.
extern "C" __global__ void bitonic_sort(const unsigned* x, unsigned* out) {
    __shared__ unsigned s[512];
    int t = threadIdx.x;
    x += blockIdx.x * 512;
    s[t] = x[t];
    s[t + 256] = x[t + 256];
    for (int k = 2; k <= 512; k *= 2)
        for (int j = k / 2; j > 0; j /= 2) {
            __syncthreads();
            for (int i = t; i < 512; i += 256) {
                int other = i ^ j;
                if (other < i) continue;
                unsigned a = s[i], b = s[other];
                if ((a > b) == ((i & k) == 0)) {
                    s[i] = b;
                    s[other] = a;
                }
            }
        }
    __syncthreads();
    out[blockIdx.x * 512 + t] = s[t];
    out[blockIdx.x * 512 + t + 256] = s[t + 256];
}
