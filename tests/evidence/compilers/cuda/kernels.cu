// CUDA C++ kernels of the collection, of our own writing; each entry between its name's lines is compiled apart.

//== saxpy
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

//== transpose_tile
extern "C" __global__ void transpose_tile(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = in[y * columns + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x; y = blockIdx.x * 16 + threadIdx.y;
    if (x < rows && y < columns) out[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}

//== cub_block_reduce
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void cub_block_reduce(const int* in, int* out) {
    using Reduce = cub::BlockReduce<int, 128>;
    __shared__ typename Reduce::TempStorage room;
    int total = Reduce(room).Sum(in[blockIdx.x * 128 + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

//== cub_block_scan
#include <cub/block/block_scan.cuh>
extern "C" __global__ void cub_block_scan(const int* in, int* out) {
    using Scan = cub::BlockScan<int, 64>;
    __shared__ typename Scan::TempStorage room;
    int items[2] = {in[threadIdx.x * 2], in[threadIdx.x * 2 + 1]};
    Scan(room).ExclusiveSum(items, items);
    out[threadIdx.x * 2] = items[0]; out[threadIdx.x * 2 + 1] = items[1];
}

//== cub_radix_sort
#include <cub/block/block_radix_sort.cuh>
extern "C" __global__ void cub_radix_sort(unsigned* keys) {
    using Sort = cub::BlockRadixSort<unsigned, 64, 2>;
    __shared__ typename Sort::TempStorage room;
    unsigned mine[2] = {keys[threadIdx.x * 2], keys[threadIdx.x * 2 + 1]};
    Sort(room).Sort(mine);
    keys[threadIdx.x * 2] = mine[0]; keys[threadIdx.x * 2 + 1] = mine[1];
}

//== cub_warp_reduce
#include <cub/warp/warp_reduce.cuh>
extern "C" __global__ void cub_warp_reduce(const float* in, float* out) {
    using Reduce = cub::WarpReduce<float>;
    __shared__ typename Reduce::TempStorage room[2];
    int warp = threadIdx.x / 32;
    float total = Reduce(room[warp]).Sum(in[threadIdx.x]);
    if (threadIdx.x % 32 == 0) out[warp] = total;
}

//== cub_merge_sort
#include <cub/block/block_merge_sort.cuh>
struct Less { __device__ bool operator()(int a, int b) const { return a < b; } };
extern "C" __global__ void cub_merge_sort(int* keys) {
    using Sort = cub::BlockMergeSort<int, 64, 2>;
    __shared__ typename Sort::TempStorage room;
    int mine[2] = {keys[threadIdx.x * 2], keys[threadIdx.x * 2 + 1]};
    Sort(room).Sort(mine, Less());
    keys[threadIdx.x * 2] = mine[0]; keys[threadIdx.x * 2 + 1] = mine[1];
}

//== cub_histogram
#include <cub/block/block_histogram.cuh>
extern "C" __global__ void cub_histogram(const unsigned char* in, unsigned* out) {
    using Histogram = cub::BlockHistogram<unsigned char, 64, 2, 16, cub::BLOCK_HISTO_ATOMIC>;
    __shared__ typename Histogram::TempStorage room;
    __shared__ unsigned bins[16];
    unsigned char mine[2] = {in[threadIdx.x * 2], in[threadIdx.x * 2 + 1]};
    Histogram(room).Histogram(mine, bins);
    __syncthreads();
    if (threadIdx.x < 16) out[threadIdx.x] = bins[threadIdx.x];
}

//== cooperative_reduce
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void cooperative_reduce(const int* in, int* out) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<32>(block);
    int total = cg::reduce(tile, in[block.thread_rank()], cg::plus<int>());
    if (tile.thread_rank() == 0) atomicAdd(out, total);
    auto half = cg::tiled_partition<8>(block);
    int most = cg::reduce(half, in[block.thread_rank()], cg::greater<int>());
    if (half.thread_rank() == 0) out[1 + block.thread_rank() / 8] = most;
}

//== cooperative_grid
#include <cooperative_groups.h>
extern "C" __global__ void cooperative_grid(int* data, int* out) {
    auto grid = cooperative_groups::this_grid();
    int i = grid.thread_rank(), n = grid.size();
    data[i] = i * 3;
    grid.sync();
    out[i] = data[(i + 37) % n];
}

//== cooperative_coalesced
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void cooperative_coalesced(const int* in, int* count, int* out) {
    if (in[threadIdx.x] % 3 == 0) {
        auto here = cg::coalesced_threads();
        int first = 0;
        if (here.thread_rank() == 0) first = atomicAdd(count, here.size());
        first = here.shfl(first, 0);
        out[first + here.thread_rank()] = in[threadIdx.x];
    }
}

//== labeled_partition
#include <cooperative_groups.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
extern "C" __global__ void labeled_partition(const int* in, int* out) {
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    auto label = cg::labeled_partition(tile, in[threadIdx.x] & 3);
    out[threadIdx.x] = cg::inclusive_scan(label, in[threadIdx.x]);
}

//== cuda_barrier
#include <cuda/barrier>
extern "C" __global__ void cuda_barrier(int* data) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ int values[64];
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    int mine = data[threadIdx.x];
    for (int turn = 0; turn < 4; ++turn) {
        values[threadIdx.x] = mine;
        barrier.arrive_and_wait();
        mine += values[(threadIdx.x + 1) % 64];
        auto token = barrier.arrive();
        barrier.wait(std::move(token));
    }
    data[threadIdx.x] = mine;
}

//== cuda_pipeline
#include <cooperative_groups.h>
#include <cuda/pipeline>
extern "C" __global__ void cuda_pipeline(const int* in, int* out, int tiles) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ int room[2][64];
    auto block = cooperative_groups::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int total = 0;
    pipe.producer_acquire();
    cuda::memcpy_async(block, room[0], in, sizeof(int) * 64, pipe);
    pipe.producer_commit();
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, room[(tile + 1) % 2], in + (tile + 1) * 64, sizeof(int) * 64, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        total += room[tile % 2][63 - threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = total;
}

//== cuda_atomic_ref
#include <cuda/atomic>
extern "C" __global__ void cuda_atomic_ref(int* total, int* order) {
    cuda::atomic_ref<int, cuda::thread_scope_device> ref(*total);
    int before = ref.fetch_add(1, cuda::memory_order_relaxed);
    order[before] = before;
    cuda::atomic_ref<int, cuda::thread_scope_device> most(total[1]);
    most.fetch_max(threadIdx.x, cuda::memory_order_acq_rel);
}

//== spin_turns
extern "C" __global__ void spin_turns(int* turn, int* log) {
    if (threadIdx.x == 0) {
        while (atomicAdd(turn, 0) != blockIdx.x) { }
        log[blockIdx.x] = blockIdx.x;
        __threadfence();
        atomicAdd(turn, 1);
    }
}

//== halves
#include <cuda_fp16.h>
extern "C" __global__ void halves(const __half* x, const __half* y, __half* out, int n) {
    int i = threadIdx.x;
    __half2 a = ((const __half2*)x)[i], b = ((const __half2*)y)[i];
    ((__half2*)out)[i] = __hfma2(a, b, __hadd2(a, b));
    ((__half2*)out)[i + n] = __hmax2(a, b);
    ((__half2*)out)[i + 2 * n] = h2sqrt(__habs2(a));
    ((__half2*)out)[i + 3 * n] = __float22half2_rn(make_float2(__low2float(a) * 0.5f, __high2float(b)));
    ((__half2*)out)[i + 4 * n] = __hgt2(a, b);
}

//== brains
#include <cuda_bf16.h>
extern "C" __global__ void brains(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* out, int n) {
    int i = threadIdx.x;
    __nv_bfloat162 a = ((const __nv_bfloat162*)x)[i], b = ((const __nv_bfloat162*)y)[i];
    ((__nv_bfloat162*)out)[i] = __hmul2(a, b);
    ((__nv_bfloat162*)out)[i + n] = __hmax2(a, b);
    ((__nv_bfloat162*)out)[i + 2 * n] = __hadd2(a, b);
    ((__nv_bfloat162*)out)[i + 3 * n] = __float22bfloat162_rn(make_float2(__low2float(a) * 0.5f, __high2float(b)));
}

//== quarters
#include <cuda_fp8.h>
extern "C" __global__ void quarters(const float* x, __nv_fp8_e4m3* e4, __nv_fp8_e5m2* e5, float* back) {
    int i = threadIdx.x;
    e4[i] = __nv_fp8_e4m3(x[i]);
    e5[i] = __nv_fp8_e5m2(x[i]);
    back[2 * i] = float(e4[i]);
    back[2 * i + 1] = float(e5[i]);
}

//== wmma_f16
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void wmma_f16(const half* a, const half* b, const float* c, float* d) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
    wmma::load_matrix_sync(sums, c, 16, wmma::mem_row_major);
    for (int k = 0; k < 32; k += 16) {
        wmma::load_matrix_sync(left, a + k, 32);
        wmma::load_matrix_sync(right, b + k, 32);
        wmma::mma_sync(sums, left, right, sums);
    }
    for (int i = 0; i < sums.num_elements; ++i) sums.x[i] *= 2.0f;
    wmma::store_matrix_sync(d, sums, 16, wmma::mem_col_major);
}

//== wmma_shapes
#include <mma.h>
using namespace nvcuda;
template <int M, int N, typename Sum> __device__ void one(const half* a, const half* b, Sum* d) {
    wmma::fragment<wmma::matrix_a, M, N, 16, half, wmma::col_major> left;
    wmma::fragment<wmma::matrix_b, M, N, 16, half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, M, N, 16, Sum> sums;
    wmma::fill_fragment(sums, Sum(1.0f));
    wmma::load_matrix_sync(left, a, M);
    wmma::load_matrix_sync(right, b, N);
    wmma::mma_sync(sums, left, right, sums);
    wmma::store_matrix_sync(d, sums, N, wmma::mem_row_major);
}
extern "C" __global__ void wmma_shapes(const half* a, const half* b, float* d, half* e) {
    one<8, 32, float>(a, b, d);
    one<32, 8, float>(a, b, d + 256);
    one<16, 16, half>(a, b, e);
    one<8, 32, half>(a, b, e + 256);
    one<32, 8, half>(a, b, e + 512);
}

//== wmma_s8
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void wmma_s8(const signed char* a, const signed char* b, int* d) {
    __shared__ signed char tile[256];
    for (int i = threadIdx.x; i < 256; i += 32) tile[i] = a[i];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> sums;
    wmma::fill_fragment(sums, 0);
    wmma::load_matrix_sync(left, tile, 16);
    wmma::load_matrix_sync(right, b, 16);
    wmma::mma_sync(sums, left, right, sums);
    wmma::store_matrix_sync(d, sums, 16, wmma::mem_row_major);
}

//== wmma_tf32
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void wmma_tf32(const float* a, const float* b, float* d, const double* x, const double* y, double* z) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sums;
    wmma::fill_fragment(sums, 0.0f);
    wmma::load_matrix_sync(left, a, 8);
    wmma::load_matrix_sync(right, b, 8);
    wmma::mma_sync(sums, left, right, sums);
    wmma::store_matrix_sync(d, sums, 16, wmma::mem_row_major);
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> l;
    wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::col_major> r;
    wmma::fragment<wmma::accumulator, 8, 8, 4, double> s;
    wmma::fill_fragment(s, 0.0);
    wmma::load_matrix_sync(l, x, 4);
    wmma::load_matrix_sync(r, y, 4);
    wmma::mma_sync(s, l, r, s);
    wmma::store_matrix_sync(z, s, 8, wmma::mem_row_major);
}

//== simd_in_word
extern "C" __global__ void simd_in_word(const unsigned* x, const unsigned* y, unsigned* out, int n) {
    int i = threadIdx.x;
    unsigned a = x[i], b = y[i];
    out[i] = __vabsdiffu4(a, b);
    out[i + n] = __vadd4(a, b);
    out[i + 2 * n] = __vmaxs4(a, b);
    out[i + 3 * n] = __vcmpgtu2(a, b);
    out[i + 4 * n] = __vsadu4(a, b);
    out[i + 5 * n] = __vaddss2(a, b);
    out[i + 6 * n] = __dp4a(int(a), int(b), 7);
    out[i + 7 * n] = __vavgu4(a, b);
}

//== prints
extern "C" __global__ void prints(const int* x, int* count) {
    if (threadIdx.x < 2) count[threadIdx.x] = printf("thread %d has %5.2f and %s\n", threadIdx.x, x[threadIdx.x] * 0.5, "text");
}

//== heap
extern "C" __global__ void heap(const int* x, int* out) {
    for (int turn = 0; turn < 3; ++turn) {
        int* room = (int*)malloc(sizeof(int) * (threadIdx.x % 4 + 1));
        if (room == nullptr) { out[threadIdx.x] = -1; return; }
        for (int i = 0; i <= threadIdx.x % 4; ++i) room[i] = x[threadIdx.x] + i + turn;
        int total = 0;
        for (int i = 0; i <= threadIdx.x % 4; ++i) total += room[i];
        out[threadIdx.x] = total;
        free(room);
    }
}

//== news
struct Shape { __device__ virtual int area() const = 0; __device__ virtual ~Shape() {} };
struct Square : Shape { int a; __device__ Square(int a) : a(a) {} __device__ int area() const override { return a * a; } };
struct Strip : Shape { int a; __device__ Strip(int a) : a(a) {} __device__ int area() const override { return 3 * a; } };
extern "C" __global__ void news(int* out) {
    Shape* shape = threadIdx.x % 2 ? (Shape*)new Square(threadIdx.x) : (Shape*)new Strip(threadIdx.x);
    out[threadIdx.x] = shape->area();
    delete shape;
}

//== recursion
__device__ __noinline__ int ackermann(int m, int n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}
__device__ __noinline__ int odd(int n);
__device__ __noinline__ int even(int n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __noinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1); }
extern "C" __global__ void recursion(int* out) {
    out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x % 4) + 1000 * even(threadIdx.x);
}

//== local_arrays
extern "C" __global__ void local_arrays(const int* x, int* out) {
    int room[16];
    for (int i = 0; i < 16; ++i) room[i] = x[(threadIdx.x + i) % 32];
    for (int i = 1; i < 16; ++i)
        for (int j = i; j > 0 && room[j - 1] > room[j]; --j) { int t = room[j]; room[j] = room[j - 1]; room[j - 1] = t; }
    out[threadIdx.x] = room[x[threadIdx.x] & 15];
}

//== statics
__constant__ int table[4] = {3, 1, 4, 1};
__device__ int counter = 5;
extern "C" __global__ void statics(int* out) {
    static int turns = 7;
    out[threadIdx.x] = table[threadIdx.x % 4] + turns;
    if (threadIdx.x == 0) out[32] = atomicAdd(&counter, 1);
}

//== math
extern "C" __global__ void math(const float* x, float* out, int n) {
    int i = threadIdx.x;
    float v = x[i];
    out[i] = sinf(v); out[i + n] = expf(v); out[i + 2 * n] = logf(v + 2); out[i + 3 * n] = powf(v + 2, 1.5f);
    out[i + 4 * n] = erff(v); out[i + 5 * n] = tgammaf(v + 3); out[i + 6 * n] = rsqrtf(v + 2); out[i + 7 * n] = fmodf(v, 0.3f);
    out[i + 8 * n] = atan2f(v, 0.5f); out[i + 9 * n] = cbrtf(v);
}

//== shuffles
extern "C" __global__ void shuffles(const int* x, int* out, int n) {
    int i = threadIdx.x, v = x[i];
    out[i] = __shfl_up_sync(~0u, v, 3); out[i + n] = __shfl_xor_sync(~0u, v, 5);
    out[i + 2 * n] = __ballot_sync(~0u, v & 1); out[i + 3 * n] = __match_any_sync(~0u, v & 3);
    out[i + 4 * n] = __popc(__activemask()); out[i + 5 * n] = __all_sync(~0u, v < 200);
}

//== histogram_shared
extern "C" __global__ void histogram_shared(const unsigned char* in, unsigned* out, int n) {
    extern __shared__ unsigned bins[];
    for (int i = threadIdx.x; i < 32; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[in[i] % 32], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 32; i += blockDim.x) atomicAdd(&out[i], bins[i]);
}

//== bulk_copy
#include <cuda/barrier>
#include <cuda/ptx>
extern "C" __global__ void bulk_copy(const int* in, int* out) {
    __shared__ alignas(128) int room[256];
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    if (threadIdx.x == 0) { init(&barrier, blockDim.x); cuda::ptx::fence_proxy_async(cuda::ptx::space_shared); }
    __syncthreads();
    cuda::barrier<cuda::thread_scope_block>::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::memcpy_async(room, in, cuda::aligned_size_t<16>(sizeof(room)), barrier);
    }
    token = barrier.arrive();
    barrier.wait(std::move(token));
    for (int i = threadIdx.x; i < 256; i += blockDim.x) out[i] = room[255 - i];
}

//== cluster_sum
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_sum(const int* in, int* out) {
    __shared__ int mine;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) mine = 0;
    __syncthreads();
    atomicAdd(&mine, in[blockIdx.x * blockDim.x + threadIdx.x]);
    cluster.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = mine + *cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
    cluster.sync();
}

//== cooperative_tiles_of_warps
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void cooperative_tiles_of_warps(const int* in, int* out) {
    __shared__ cg::block_tile_memory<128> memory;
    auto block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<64>(block);
    int total = cg::reduce(tile, in[block.thread_rank()], cg::plus<int>());
    tile.sync();
    out[block.thread_rank()] = total + tile.thread_rank();
}
