"""Launches by what two calls must share to be alike, and memory that launches share. Knows no kernel type."""

from collections.abc import Iterable
from contextlib import nullcontext
from functools import lru_cache
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
    return (*alike, device.index, torch._C._cuda_getCurrentRawStream(device.index))


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


_ends: dict[torch.device, tuple[int, int, Tensor]] = {}


def same_ends(device: torch.device, batch: int, value: int) -> Tensor:
    """int32 `[batch]` of one value that changes from step to step; the layers of a step share it."""
    kept = _ends.get(device)
    if kept is not None and kept[:2] == (batch, value):
        return kept[2]
    made = torch.full((batch,), value, dtype=torch.int32, device=device)
    if device.type == "cpu" or not _is_capturing(device.index):  # what is captured is of that graph
        _ends[device] = batch, value, made
    return made


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


@lru_cache(maxsize=256)
def constant(device: torch.device, count: int, value: int) -> Any:
    """int32 `[count]`, kept as long as the process lives."""
    if device.type == "cpu":
        return torch.full((count,), value, dtype=torch.int32)
    return Constant(device, count, value)
