"""Launches by what two calls must share to be alike, and memory that launches share. Knows no kernel type."""

from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptxgen.runtime import open_device
from ptxgen.torch import _is_capturing, _Prepared

SHORTEST = 1024  # what caches that grow are taken to hold at least, so that few kernels serve all lengths
MOST_SITES = 512
_sites: dict[tuple[Any, ...], _Prepared] = {}


def site_of(device: torch.device, *alike: Any) -> tuple[Any, ...]:
    """What two calls share of which the second only needs other addresses; empty where there is no GPU."""
    if device.type != "cuda":
        return ()
    return (*alike, device.index, _stream(device))


def _stream(device: torch.device) -> int:
    """torch's current stream of a GPU."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))


def again(site: tuple[Any, ...], tensors: Iterable[Tensor], scalars: Iterable[int]) -> bool:
    """Launch as a call before did, over these tensors; whether there was one."""
    prepared = _sites.get(site)
    if prepared is None:
        return False
    prepared.launch([tensor.data_ptr() for tensor in tensors], scalars, *site[-2:])
    return True


def remember(site: tuple[Any, ...], launched: _Prepared | None) -> None:
    """What was launched at a site, for `again`; the oldest ones are forgotten together."""
    if launched is not None:
        if len(_sites) >= MOST_SITES:
            _sites.clear()
        _sites[site] = launched


def capacity(rows: int) -> int:
    """What a cache of so many rows is taken to hold: a power of two."""
    return max(SHORTEST, 1 << (rows - 1).bit_length())


_ends: dict[tuple[torch.device, int], tuple[int, int, Tensor]] = {}


def same_ends(device: torch.device, batch: int, value: int) -> Tensor:
    """int32 `[batch]` of one value that changes from step to step; the layers of a step on a stream share it. What is
    captured is of that graph: its memory is the graph's, and the graph fills it."""
    on_gpu = device.type != "cpu"
    if on_gpu and _is_capturing(device.index):
        return torch.full((batch,), value, dtype=torch.int32, device=device)
    place = device, _stream(device) if on_gpu else 0  # memory that is let go is used again on its own stream
    kept = _ends.get(place)
    if kept is None or kept[:2] != (batch, value):
        made = torch.full((batch,), value, dtype=torch.int32, device=device)
        kept = _ends[place] = batch, value, made
    return kept[2]


class Constant:
    """int32 `[count]` of one value on a GPU, in memory of ours: torch's would be of the graph that is captured just
    then. As much of a tensor as a launch asks for; kept as long as the process lives."""

    dtype = torch.int32

    def __init__(self, device: torch.device, count: int, value: int) -> None:
        ours: Any = open_device(f"cuda:{device.index}")
        self.device, self.shape = device, (count,)
        with ours.relaxed() if _is_capturing(device.index) else nullcontext():
            self._buffer = ours.array(np.full(count, value, np.int32))

    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return int(self._buffer.pointer)

    def view(self, *_: int) -> "Constant":
        return self


@cache  # graphs hold their addresses
def constant(device: torch.device, count: int, value: int) -> Any:
    """int32 `[count]`, kept as long as the process lives."""
    if device.type == "cpu":
        return torch.full((count,), value, dtype=torch.int32)
    return Constant(device, count, value)
