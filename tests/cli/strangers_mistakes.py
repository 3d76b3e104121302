"""Mistakes that came up when the commands were tried anew, and the first words of what is said of each."""

STRANGERS = [
    (
        "generate kv-cache-scatter --max-len 4096.0 --head-dim 128 --n-kv-heads 8 --target sm_80",
        "KvCacheScatter.max_len: must be an int (got '4096.0')",
    ),
    ("generate {A} --target sm_80 --max-len 5", "--max-len: activation has no field max_len; the option is of a whol"),
    ("generate {A} --config small.json --target sm_80 -o o", "--config: a kernel type or a whole model, not both (go"),
    ("generate {A} --target sm_80 --weights q8_0", "--weights: activation has no field weights; the option is of a w"),
    ("generate --config small.json {A} --target sm_80 -o o", "generate: name a kernel type or give --config, not both"),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --kv-dtype F16 --target sm_80",
        "IncrementalAttention.kv_dtype: must be one of f32, f16, bf16",
    ),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --scale nan --target sm_80",
        "IncrementalAttention.scale: must be a number of magnitude fr",
    ),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --scale inf --target sm_80",
        "IncrementalAttention.scale: must be a number of magnitude fr",
    ),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --window 128 --target sm_80",
        "IncrementalAttention.window: must be from 0 to 64 (got 128;",
    ),
    (
        "generate {I} --n-heads 4 --n-kv-heads 2 --page-size 16 --target sm_80",
        "IncrementalAttention.page_size: needs batched=True",
    ),
    (
        "generate rope --head-dim 64 --n-heads 4 --n-kv-heads 2 --rotary-dim 65 --target sm_80",
        "Rope.rotary_dim: must be a multiple of 8 from 8 to 64 (got 6",
    ),
    (
        "generate rope --head-dim 64 --n-heads 4 --n-kv-heads 2 --scaling yarn --target sm_80",
        "Rope.scaling: must be one of default, linear, llama3 (got ya",
    ),
    (
        "generate rope --head-dim 64 --n-heads 4 --n-kv-heads 2 --theta nan --target sm_80",
        "Rope.theta: must be from 1.0 to 1000000000000.0 (got nan)",
    ),
    (
        "generate multi-head-attention --head-dim 64 --n-heads 4 --n-kv-heads 2 --q-dtype s8 --target sm_80",
        "MultiHeadAttention.q_dtype: must be one of f32, f16, bf16 (g",
    ),
    (
        "generate --config https://example.org/config.json --target sm_80 -o o",
        "https:/example.org/config.json: No such file or directory",
    ),
    ("generate --config nanx.npz --target sm_80 -o o", "nanx.npz: must be a text file with JSON (got bytes that are"),
    ("generate --config small.json --target sm_80 -o good.ptx", "good.ptx/index.json: Not a directory"),
    (
        "generate --config small.json --target sm_80 -o o --max-len 1e5",
        "Invalid value for '--max-len': '1e5' is not a valid integer",
    ),
    (
        "generate --config small.json --target sm_80 -o o --max-len 99999999999999999999",
        "RopeKvAppend.max_len: must be from 1 to 1073741824 (got 9999",
    ),
    (
        "generate --config small.json --target sm_80 -o o --rings --page-size 16",
        "Invalid value for '--rings': '--page-size' is not a valid in",
    ),
    (
        "generate --config small.json --target sm_80 -o o --weights q4_k",
        "embed_tokens: q4_k: cols: must be a multiple of 256 from 256",
    ),
    ("generate --config small.json --target sm_80 -o -", "-o: is needed with --config: the directory to write to"),
    ("export --config small.json --target sm_80 -o -", "-o: must be a name, nothing of it goes to standard output (g"),
    (
        "export kv-cache-scatter --max-len 64 --head-dim 64 --n-kv-heads 2 --target sm_80 -o -",
        "-o: must be a name, nothing of it goes to standard output (got '-')",
    ),
    (
        "export kv-cache-scatter --max-len 64 --head-dim 64 --n-kv-heads 2 --target sm_80 --prefix x -o o",
        "--prefix: kv-cache-scatter has no field prefix; the option is of a whole model",
    ),
    ("export --config small.json --target sm_80 --dim 64 -o o", "No such option '--dim'."),
    (
        "export --model file --target sm_80 --target sm_90 -o o",
        "export --model: needs one --target, and -o, a new directory",
    ),
    ("verify /dev/null", "/dev/null: must be a file or a directory (got a device, a pipe or a socket)"),
    ("requires good.ptx small.json", "Got unexpected extra argument (small.json)"),
    ("run", "ptxgen run: names no kernel; --help shows what there is"),
    ("run {A} --device cpu --output -", "--output: must be a name, nothing of it goes to standard output (got '-')"),
    ("run {A} --device cpu --tolerance -1", "No such option '--tolerance'."),
    (
        "run kv-cache-scatter --max-len 64 --head-dim 64 --n-kv-heads 2 --device cpu --size position=1.5",
        "--size: must be NAME=N (got 'position=1.5')",
    ),
    ("record {A} --device cpu -o -", "-o: must be a name, nothing of it goes to standard output (got '-')"),
    ("record {A} --device cpu", "Missing option '-o' / '--output'."),
    ("replay x.npz extra", "Got unexpected extra argument (extra)"),
    ("check good.ptx --entry b --block 32 --sarif -", "--sarif: must be a name, nothing of it goes to standard outpu"),
    ("check good.ptx --entry b --block 32 --html -", "--html: must be a name, nothing of it goes to standard output"),
    (
        "check good.ptx --entry b --block 32 --grid 1x2x3x4",
        "Invalid value for '--grid': must be N, NxN or NxNxN (got '1x",
    ),
    ("check good.ptx --entry a --block 32 --arg f32[", "--arg: must be TYPE=NUMBER, TYPE[N], TYPE[NxM]=NUMBER, …="),
    ("check good.ptx --entry a --block 32 --arg u32=-1", "--arg: uint32 has no value -1"),
    (
        "check good.ptx --entry a --block 32 --arg f32[99999999999999]",
        "--arg: a buffer must have 1 byte to 17,179,869,184 (got '",
    ),
    ("check good.ptx --entry b --block 0x1", "Geometry.block: each of one to three values must be 1 … (1024, 1024, 6"),
    ("golden check --target sm_1", "target: must be one of sm_70, sm_72, sm_75, sm_80, sm_86, sm_87, sm_88, sm_89, s"),
    ("golden check --root file extra", "kernel type: must be one of activation, advance, arg_max, dequantize, digit_"),
    ("list {A}", "No such option '--dim'."),
    ("list --target sm_80", "No such option '--target'."),
    ("complete file", "Missing argument 'PROMPT'."),
    ("complete file hello --max-tokens 0", "Invalid value for '--max-tokens': 0 is not in the range x>=1."),
    ("complete good.ptx hello", "good.ptx: must be a .gguf file, a folder with config.json and .safetensors files, o"),
    ("tune --config nonesuch.json", "nonesuch.json: No such file or directory"),
    ("tune --product 0x64/q4_k", "Gemv.n: must be from 1 to 1048576 (got 0; nearest: 1); Gemv.k: must be a multiple"),
    ("doctor --config", "Option '--config' requires an argument."),
    ("doctor --model file --max-len 0", "Invalid value for '--max-len': 0 is not in the range x>=1."),
    ("completion bash zsh", "Got unexpected extra argument (zsh)"),
]  # fmt: skip
