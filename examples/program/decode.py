"""Decodes a model that `ptxgen.export.program` wrote, from its folder alone: kernels, weights and the list of launches.

    python decode.py FOLDER [--token 1] [--count 16] [--device cpu]

What it does is what a host in any language does; `examples/c_host/decode.c` is the same in C with the CUDA driver.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.runtime import open_device


def bind(folder: Path, listing: dict[str, Any], device: Any, blocks: dict[str, Any]) -> list[Any]:
    """Every launch with its arguments."""
    entries = []
    for kernel in listing["kernels"]:
        text = (folder / kernel["ptx"]).read_text()
        entries.append(device.module(text)[kernel["entry"]])
    bound = []
    for launch in listing["launches"]:
        arguments = []
        for one in launch["arguments"]:
            if "memory" in one:
                arguments.append(blocks[one["memory"]].view(0, offset=one["offset"]))
            else:
                arguments.append(int(one["value"]).to_bytes(one["bytes"], "little", signed=True))
        entry = entries[launch["kernel"]]
        bound.append(entry.bind(launch["grid"], launch["block"], arguments, launch["shared"], launch["cluster"]))
    return bound


def decode(folder: Path, token: int, count: int, device_name: str | None) -> list[int]:
    """The likeliest tokens after one at position 0."""
    try:
        listing = json.loads((folder / "program.json").read_text())
    except OSError as wrong:
        raise SystemExit(f"decode: {wrong.filename}: {wrong.strerror}") from None
    model = listing["model"]
    for name, value, most in (("token", token, model["vocab"] - 1), ("count", count, model["max_len"])):
        if not 0 <= value <= most:
            raise SystemExit(f"decode: {name}: must be from 0 to {most} (got {value})")
    device = open_device(device_name)
    blocks = {name: device.zeros(max(1, block["bytes"]), "u8") for name, block in listing["memory"].items()}
    blocks["weights"].copy_from(np.fromfile(folder / listing["memory"]["weights"]["file"], np.uint8))

    def state(name: str) -> Any:
        return blocks["state"].view(1, "s32", listing["tensors"][name]["offset"])

    for name, value in (("tokens", token), ("position", 0), ("length", 1)):
        state(name).copy_from(np.array([value], np.int32))
    launches = bind(folder, listing, device, blocks)
    found = []
    for _ in range(count):
        for launch in launches:
            launch.launch()
        found.append(int(state("tokens").numpy()[0]))  # the step left it there for the next one
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("folder", type=Path)
    asked.add_argument("--token", type=int, default=1)
    asked.add_argument("--count", type=int, default=16)
    asked.add_argument("--device")
    given = asked.parse_args()
    print(*decode(given.folder, given.token, given.count, given.device))


if __name__ == "__main__":
    main()
