"""The two ways of running a batch of programs: PTX on a device, and native code on this machine."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tests.evidence.fuzz.program import INPUT_BYTES, OUTPUT_BYTES, THREADS, Program, device_module, host_module

NVPTX = "nvptx64-nvidia-cuda"
_ready = False


def _start() -> None:
    global _ready
    if not _ready:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        _ready = True


def inputs(seed: int) -> np.ndarray:
    """Bytes to load from: any bits, small integers, and floats of moderate size, in turns of 64 bytes."""
    rng = random.Random(seed ^ 0x5EED)
    raw = np.frombuffer(rng.randbytes(INPUT_BYTES), np.uint8).copy()
    for start in range(0, INPUT_BYTES - 64, 64):
        kind = rng.randrange(5)
        if kind == 0:
            raw[start : start + 64].view(np.int32)[:] = [rng.randrange(-20, 20) for _ in range(16)]
        elif kind == 1:
            raw[start : start + 64].view(np.float32)[:] = [rng.gauss(0, 10) for _ in range(16)]
        elif kind == 2:
            raw[start : start + 64].view(np.float64)[:] = [rng.gauss(0, 100) for _ in range(8)]
        elif kind == 3:
            raw[start : start + 64].view(np.float16)[:] = [rng.gauss(0, 5) for _ in range(32)]
    return raw


def optimised(text: str, machine: llvm.TargetMachine, level: int) -> llvm.ModuleRef:
    """The parsed module after LLVM's own passes at a level; 0 only turns memory into registers."""
    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
    if level:
        builder.getModulePassManager().run(module, builder)
    return module


def to_ptx(programs: list[Program], level: int) -> str:
    """PTX of a batch."""
    _start()
    target = llvm.Target.from_triple(NVPTX)
    machine = target.create_target_machine(cpu="sm_90", features="+ptx80", opt=level)
    return machine.emit_assembly(optimised(device_module(programs), machine, level))


def on_device(programs: list[Program], device: Any, level: int) -> list[np.ndarray]:
    """Results by way of PTX."""
    module = device.module(to_ptx(programs, level))
    results = []
    for n, program in enumerate(programs):
        args = [device.array(inputs(program.seed)), device.array(np.zeros(OUTPUT_BYTES, np.uint8))]
        module[f"k{n}"].launch(grid=(1,), block=(THREADS,), args=args)
        results.append(args[1].numpy())
    return results


def on_host(programs: list[Program]) -> list[np.ndarray]:
    """Results of native code, unoptimised but for the code generator."""
    _start()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )
    module = optimised(host_module(programs), machine, 0)
    results = []
    with llvm.create_mcjit_compiler(module, machine) as engine:
        engine.finalize_object()
        for n, program in enumerate(programs):
            given, out = inputs(program.seed), np.zeros(OUTPUT_BYTES, np.uint8)
            function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address(f"k{n}"))
            function(given.ctypes.data, out.ctypes.data)
            results.append(out)
    return results
