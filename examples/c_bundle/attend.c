/* Attends over a KV cache with a bundle of `ptxgen export --config`, on the GPU, with the CUDA driver alone.

       ptxgen export --config examples/train/config.json --target sm_80 --no-cubin -o BUNDLE
       cc -std=c11 -I BUNDLE -D_GNU_SOURCE -o attend examples/c_bundle/attend.c -ldl -lm && ./attend BUNDLE/sm_80

   Every position is appended, and its query sees all so far; position and length lie in device memory. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "sm_80/append.h"
#include "sm_80/decode.h"

typedef void *Handle;
static Handle driver;
#define CALL(name, types, ...)                                                                                         \
    do {                                                                                                               \
        int(*called) types = (int(*) types)(uintptr_t)dlsym(driver, name);                                             \
        int code = called ? called(__VA_ARGS__) : -1;                                                                  \
        if (code) { fprintf(stderr, "attend: %s: error %d\n", name, code); exit(1); }                                  \
    } while (0)

static uint64_t zeros(size_t bytes) {
    uint64_t at;
    CALL("cuMemAlloc_v2", (uint64_t *, size_t), &at, bytes);
    CALL("cuMemsetD8_v2", (uint64_t, unsigned char, size_t), at, 0, bytes);
    return at;
}
static void put(uint64_t at, const void *from, size_t bytes) {
    CALL("cuMemcpyHtoD_v2", (uint64_t, const void *, size_t), at, from, bytes);
}
static Handle entry(const char *folder, const char *file, const char *name) {
    char path[4096];
    Handle module, function;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    CALL("cuModuleLoad", (Handle *, const char *), &module, path);
    CALL("cuModuleGetFunction", (Handle *, Handle, const char *), &function, module, name);
    return function;
}
static void launch(Handle function, const uint32_t grid[3], const uint32_t block[3], unsigned shared, void **pointers) {
    CALL("cuLaunchKernel", (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **),
         function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, NULL, pointers, NULL);
}

int main(int count, char **words) {
    int device;
    Handle context;
    if (count != 2) { fprintf(stderr, "usage: attend BUNDLE/sm_80\n"); return 2; }
    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) { fprintf(stderr, "attend: no libcuda.so.1\n"); return 1; }
    CALL("cuInit", (unsigned), 0);
    CALL("cuDeviceGet", (int *, int), &device, 0);
    CALL("cuDevicePrimaryCtxRetain", (Handle *, int), &context, device);
    CALL("cuCtxSetCurrent", (Handle), context);
    Handle append = entry(words[1], "append.ptx", APPEND_SM_80_ENTRY), decode = entry(words[1], "decode.ptx", DECODE_SM_80_ENTRY);
    size_t kv = append_sm_80_k_bytes(1), row = decode_sm_80_q_bytes();
    uint64_t k_cache = zeros(decode_sm_80_k_cache_bytes()), v_cache = zeros(decode_sm_80_v_cache_bytes());
    append_sm_80_params a = {.k = zeros(kv), .v = zeros(kv), .k_cache = k_cache, .v_cache = v_cache, .position = zeros(4)};
    decode_sm_80_params d = {.q = zeros(row), .k_cache = k_cache, .v_cache = v_cache, .out = zeros(row), .seq_len = zeros(4)};
    d.records = zeros(decode_sm_80_records_bytes()), d.tickets = zeros(decode_sm_80_tickets_bytes());
    void *of_append[APPEND_SM_80_PARAMETERS], *of_decode[DECODE_SM_80_PARAMETERS];
    append_sm_80_pointers(&a, of_append), decode_sm_80_pointers(&d, of_decode);
    uint32_t append_grid[3], decode_grid[3];
    append_sm_80_grid(1, append_grid), decode_sm_80_grid(decode_grid);
    float *values = malloc(row);
    for (int32_t position = 0, length = 1; position < 8; position++, length++) {
        for (size_t i = 0; i < row / sizeof *values; i++) values[i] = sinf(0.1f * (float)i + (float)position);
        put(d.q, values, row), put(a.k, values, kv), put(a.v, values, kv);
        put(a.position, &position, 4), put(d.seq_len, &length, 4);
        launch(append, append_grid, append_sm_80_block, APPEND_SM_80_SHARED_BYTES, of_append);
        launch(decode, decode_grid, decode_sm_80_block, DECODE_SM_80_SHARED_BYTES, of_decode);
        CALL("cuMemcpyDtoH_v2", (void *, uint64_t, size_t), values, d.out, row);
        printf("%.5f %.5f\n", values[0], values[row / sizeof *values - 1]);
    }
    return 0;
}
