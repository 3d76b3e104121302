/* Decodes a model that `ptxgen export --model` wrote, on the GPU, with the CUDA driver and nothing else.

       cc -O2 -o decode decode.c -ldl
       ./decode FOLDER [TOKEN] [COUNT]

   No CUDA headers: the few declarations that are needed stand here, and the driver is opened at run time. The launches
   of a token become a CUDA graph once, by capture; a token is then one graph launch and one copy of 4 bytes. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* -- the driver ---------------------------------------------------------------------------------------------------- */

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum { ATTRIBUTE_CLUSTER = 4, ATTRIBUTE_PROGRAMMATIC = 6, DYNAMIC_SHARED = 8, NON_PORTABLE_CLUSTER = 14 };

typedef struct {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct { unsigned int x, y, z; } cluster;
        int flag;
    } value;
} LaunchAttribute;

typedef struct {
    unsigned int grid[3], block[3], shared;
    CUstream stream;
    LaunchAttribute *attributes;
    unsigned int n_attributes;
} LaunchConfig;

#define DRIVER(X)                                                                                                      \
    X(cuInit, "cuInit", (unsigned int))                                                                                \
    X(cuDeviceGet, "cuDeviceGet", (CUdevice *, int))                                                                   \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                                   \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                                 \
    X(cuModuleLoad, "cuModuleLoad", (CUmodule *, const char *))                                                        \
    X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                              \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction, int, int))                                                \
    X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                            \
    X(cuMemsetD8, "cuMemsetD8_v2", (CUdeviceptr, unsigned char, size_t))                                               \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                                            \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                                                  \
    X(cuStreamCreate, "cuStreamCreate", (CUstream *, unsigned int))                                                    \
    X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                                          \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream, int))                                                \
    X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph *))                                                 \
    X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec *, CUgraph, unsigned long long))                 \
    X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                                         \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", (const LaunchConfig *, CUfunction, void **, void **))                      \
    X(cuGetErrorString, "cuGetErrorString", (CUresult, const char **))

#define DECLARE(name, symbol, arguments) static CUresult(*name) arguments;
DRIVER(DECLARE)

static void fail(const char *what, const char *why) {
    fprintf(stderr, "decode: %s: %s\n", what, why);
    exit(1);
}

static void check(CUresult code, const char *what) {
    const char *text = "unknown error";
    if (code == 0) return;
    cuGetErrorString(code, &text);
    fail(what, text);
}
#define CALL(call) check(call, #call)

static void open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) fail("libcuda.so.1", "is not here");
#define FIND(name, symbol, arguments)                                                                                  \
    *(void **)&name = dlsym(library, symbol);                                                                          \
    if (!name) fail(symbol, "is not in this driver");
    DRIVER(FIND)
}

/* -- JSON: values are found by walking the text; objects and arrays are never copied -------------------------------- */

static const char *skip_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *skip_string(const char *at) {
    for (at++; *at != '"'; at++) {
        if (!*at) fail("program.json", "ends inside a string");
        if (*at == '\\') at++;
    }
    return at + 1;
}

static const char *skip_value(const char *at) {
    int depth = 0;
    at = skip_space(at);
    do {
        if (!*at) fail("program.json", "ends inside a value");
        if (*at == '"') at = skip_string(at);
        else if (*at == '{' || *at == '[') depth++, at++;
        else if (*at == '}' || *at == ']') depth--, at++;
        else if (depth == 0) return at + strcspn(at, ",]} \t\r\n");
        else at++;
    } while (depth > 0);
    return at;
}

/* The value of a key of the object at `at`; NULL where there is none. */
static const char *member(const char *at, const char *key) {
    at = skip_space(at);
    if (*at != '{') fail("program.json", "must have an object here");
    for (at = skip_space(at + 1); *at == '"';) {
        const char *name = at + 1, *after = skip_string(at);
        const char *value = skip_space(after);
        if (*value != ':') fail("program.json", "must have a colon after a key");
        value = skip_space(value + 1);
        if ((size_t)(after - 1 - name) == strlen(key) && !strncmp(name, key, strlen(key))) return value;
        at = skip_space(skip_value(value));
        if (*at == ',') at = skip_space(at + 1);
    }
    return NULL;
}

static const char *need(const char *at, const char *key) {
    const char *found = member(at, key);
    if (!found) fail(key, "is not in program.json");
    return found;
}

/* The first element of the array at `at`, then the next of each; NULL at its end. */
static const char *first(const char *at) {
    at = skip_space(skip_space(at) + 1);
    return *at == ']' ? NULL : at;
}

static const char *next(const char *at) {
    at = skip_space(skip_value(at));
    return *at == ',' ? skip_space(at + 1) : NULL;
}

static long long number(const char *at) { return strtoll(at, NULL, 10); }

static void text(const char *at, char *out, size_t size) {
    size_t length = (size_t)(skip_string(at) - at - 2);
    if (length >= size) fail("program.json", "a name is too long");
    memcpy(out, at + 1, length);
    out[length] = 0;
}

static void three(const char *at, unsigned int *out) {
    int i = 0;
    for (const char *one = first(at); one && i < 3; one = next(one)) out[i++] = (unsigned int)number(one);
}

static char *read_file(const char *folder, const char *name, size_t *size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, "cannot be opened");
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    if (!bytes || fread(bytes, 1, *size, file) != *size) fail(path, "cannot be read");
    bytes[*size] = 0;
    fclose(file);
    return bytes;
}

/* -- the program ----------------------------------------------------------------------------------------------------- */

enum { WEIGHTS, STATE, SCRATCH, BLOCKS, MOST_ARGUMENTS = 32, MOST_KERNELS = 256 };
static const char *const block_names[BLOCKS] = {"weights", "state", "scratch"};
static CUdeviceptr blocks[BLOCKS];
static CUfunction functions[MOST_KERNELS];

static CUdeviceptr address(const char *where) {
    char name[64];
    text(need(where, "memory"), name, sizeof name);
    for (int i = 0; i < BLOCKS; i++)
        if (!strcmp(name, block_names[i])) return blocks[i] + (CUdeviceptr)number(need(where, "offset"));
    fail(name, "is no block of memory");
    return 0;
}

static void load(const char *folder, const char *listing) {
    char name[4096], path[8192];
    int count = 0;
    for (int i = 0; i < BLOCKS; i++) {
        const char *block = need(need(listing, "memory"), block_names[i]);
        size_t size = (size_t)number(need(block, "bytes"));
        CALL(cuMemAlloc(&blocks[i], size ? size : 1));
        CALL(cuMemsetD8(blocks[i], 0, size));
        if (i == WEIGHTS) {
            size_t read;
            text(need(block, "file"), name, sizeof name);
            char *bytes = read_file(folder, name, &read);
            if (read != size) fail(name, "has another size than program.json says");
            CALL(cuMemcpyHtoD(blocks[i], bytes, size));
            free(bytes);
        }
    }
    for (const char *one = first(need(listing, "kernels")); one; one = next(one)) {
        CUmodule module;
        const char *file = member(one, "cubin");
        if (count == MOST_KERNELS) fail("program.json", "has more kernels than this host takes");
        text(file ? file : need(one, "ptx"), name, sizeof name);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        check(cuModuleLoad(&module, path), path);
        text(need(one, "entry"), name, sizeof name);
        check(cuModuleGetFunction(&functions[count++], module, name), name);
    }
}

static void launch(const char *one, CUstream stream) {
    uint64_t values[MOST_ARGUMENTS];
    void *arguments[MOST_ARGUMENTS];
    unsigned int cluster[3] = {1, 1, 1};
    LaunchAttribute attributes[2];
    LaunchConfig config = {.stream = stream, .attributes = attributes};
    int count = 0;
    for (const char *each = first(need(one, "arguments")); each; each = next(each)) {
        if (count == MOST_ARGUMENTS) fail("program.json", "has more arguments than this host takes");
        const char *value = member(each, "value");
        values[count] = value ? (uint64_t)number(value) : (uint64_t)address(each);
        arguments[count] = &values[count];
        count++;
    }
    three(need(one, "grid"), config.grid);
    three(need(one, "block"), config.block);
    three(need(one, "cluster"), cluster);
    config.shared = (unsigned int)number(need(one, "shared"));
    CUfunction function = functions[number(need(one, "kernel"))];
    if (config.shared) CALL(cuFuncSetAttribute(function, DYNAMIC_SHARED, (int)config.shared));
    memset(attributes, 0, sizeof attributes);
    if (cluster[0] * cluster[1] * cluster[2] > 1) {
        LaunchAttribute *a = &attributes[config.n_attributes++];
        a->id = ATTRIBUTE_CLUSTER;
        a->value.cluster.x = cluster[0], a->value.cluster.y = cluster[1], a->value.cluster.z = cluster[2];
        if (cluster[0] * cluster[1] * cluster[2] > 8) CALL(cuFuncSetAttribute(function, NON_PORTABLE_CLUSTER, 1));
    }
    if (*need(one, "programmatic") == 't') {
        LaunchAttribute *a = &attributes[config.n_attributes++];
        a->id = ATTRIBUTE_PROGRAMMATIC;
        a->value.flag = 1;
    }
    CALL(cuLaunchKernelEx(&config, function, arguments, NULL));
}

static void say(const char *listing, const char *name, int value) {
    CALL(cuMemcpyHtoD(address(need(need(listing, "tensors"), name)), &value, sizeof value));
}

int main(int argc, char **argv) {
    if (argc < 2) fail("usage", "decode FOLDER [TOKEN] [COUNT]");
    int token = argc > 2 ? atoi(argv[2]) : 1, count = argc > 3 ? atoi(argv[3]) : 16;
    size_t size;
    char *listing = read_file(argv[1], "program.json", &size);
    if (number(need(listing, "format")) != 1) fail("program.json", "must have format 1");
    const char *model = need(listing, "model");
    if (token < 0 || token >= number(need(model, "vocab"))) fail("TOKEN", "is none of this model");
    if (count < 0 || count > number(need(model, "max_len"))) fail("COUNT", "is more than the cache has positions");

    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUgraph graph;
    CUgraphExec step;
    open_driver();
    CALL(cuInit(0));
    CALL(cuDeviceGet(&device, 0));
    CALL(cuDevicePrimaryCtxRetain(&context, device));
    CALL(cuCtxSetCurrent(context));
    load(argv[1], listing);
    say(listing, "tokens", token);
    say(listing, "position", 0);
    say(listing, "length", 1);
    CALL(cuStreamCreate(&stream, 1));
    CALL(cuStreamBeginCapture(stream, 2));
    for (const char *one = first(need(listing, "launches")); one; one = next(one)) launch(one, stream);
    CALL(cuStreamEndCapture(stream, &graph));
    CALL(cuGraphInstantiate(&step, graph, 0));

    CUdeviceptr tokens = address(need(need(listing, "tensors"), "tokens"));
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < count; i++) {
        CALL(cuGraphLaunch(step, stream));
        CALL(cuStreamSynchronize(stream));
        CALL(cuMemcpyDtoH(&token, tokens, sizeof token)); /* the step left it there for the next one */
        printf(i ? " %d" : "%d", token);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("\n");
    double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    fprintf(stderr, "%d tokens, %.0f a second\n", count, count / seconds);
    return 0;
}
