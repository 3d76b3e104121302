"""Driver calls whose arguments never change: what is left of them is one native call. Owns no handles."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptxgen.runtime.cuda.context import CudaContext


def word(value: int) -> Any:
    """A pointer, a handle or a size as an argument that ctypes passes on without making anything."""
    return ctypes.byref(ctypes.c_char.from_address(value))


def prepared(device: CudaContext, name: str, *arguments: int) -> Callable[[], None]:
    """The call of one of `driver.NATIVE` with these pointers, handles and sizes, in the device's context.

    Raises what the device's `call` raises. Who prepares it sees to it that the handles live.
    """
    call: Callable[[], int] = partial(device.natives[name], *map(word, arguments))
    check = device.check

    def submit() -> None:
        check()
        if (code := call()) and (code := device.again(code, call)):
            raise device.failed(name, code)

    return submit
