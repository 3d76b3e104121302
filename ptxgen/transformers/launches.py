"""Launches by what two calls must share to be alike, and memory that launches share. Knows no kernel type."""

from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

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
    return (*alike, device.index, _stream(device.index))


def _stream(index: int) -> int:
    """torch's current stream of the GPU of that number."""
    stream: int = torch._C._cuda_getCurrentRawStream(index)
    return stream


def again(site: tuple[Any, ...], tensors: Iterable[Tensor], scalars: Iterable[int]) -> _Prepared | None:
    """Launch as a call before did, over these tensors; what was launched, None where there was none."""
    prepared = _sites.get(site)
    if prepared is not None:
        prepared.launch([*(tensor.data_ptr() for tensor in tensors), *scalars], *site[-2:])
    return prepared


def remember(site: tuple[Any, ...], launched: _Prepared | None) -> None:
    """What was launched at a site, for `again`; the oldest ones are forgotten together."""
    if launched is not None:
        if len(_sites) >= MOST_SITES:
            _sites.clear()
        _sites[site] = launched


class Repeat(NamedTuple):
    """A decoding call that was launched over its tensors as they lie: what the next layer's repeats.

    `numbers` stand behind the addresses of query, key, value and out among the arguments: those of `tensors`, then the
    scalars. `reach`: elements that keys and values must have from where they begin, 0 where that is all they are.
    """

    prepared: _Prepared
    tensors: tuple[Any, ...]  # not read: their memory must last as long as their addresses
    numbers: tuple[int, ...]
    reach: int


_repeats: dict[tuple[Any, ...], Repeat] = {}


def kind_of(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> tuple[Any, ...]:
    """All that decides which launch serves a decoding call on a GPU, and whether it may, but where its tensors lie. The
    numbers of GPU and stream are last."""
    index = query.get_device()
    return (
        query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride(), query.dtype, key.dtype,
        value.dtype, query.device, key.device, value.device, *options, index, _stream(index),
    )  # fmt: skip


def repeated(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Tensor | None:
    """The result `[batch, 1, heads, dim]` of a call with one query a sequence, no bounds and no sinks, that is like one
    before in all but addresses, which is nearly every layer's but the first: nothing else is looked at again. None
    where none was, and while a graph is captured."""
    if not query.is_cuda:
        return None
    kind = kind_of(query, key, value, *options)
    found = _repeats.get(kind)
    addresses = query.data_ptr(), key.data_ptr(), value.data_ptr()
    if found is None or (addresses[0] | addresses[1] | addresses[2]) & 15 or _is_capturing(kind[-2]):
        return None
    if found.reach and not (held(key) >= found.reach <= held(value)):
        return None
    shape = query.shape
    out = query.new_empty((shape[0], 1, shape[1], shape[3]))
    found.prepared.launch_uncaptured((*addresses, out.data_ptr(), *found.numbers), kind[-1])
    return out


def repeat(kind: tuple[Any, ...], found: Repeat) -> None:
    """For `repeated`: those of caches that grow are soon of no use, and are forgotten together."""
    if len(_repeats) >= MOST_SITES:
        _repeats.clear()
    _repeats[kind] = found


def held(x: Tensor) -> int:
    """Elements of a tensor's memory from where it begins."""
    return int(x.untyped_storage().nbytes() // x.itemsize - x.storage_offset())


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
    place = device, _stream(device.index) if on_gpu else 0  # memory that is let go is used again on its own stream
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
