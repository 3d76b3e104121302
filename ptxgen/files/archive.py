"""Arrays by name in an `.npz` file: read with one sentence for whatever is wrong, written whole or not at all."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ptxgen.errors import SpecError
from ptxgen.files.output import write_files

if TYPE_CHECKING:
    import numpy as np

_MODEST_BYTES = 256 << 20  # that any file may unpack to
_MOST_TIMES = 50  # and a large one: times what it has


def read_arrays(path: str | Path, what: str) -> dict[str, np.ndarray]:
    """Every array of an `.npz` file.

    Raises `OSError` where the file cannot be opened, and `SpecError` ("must be {what}") where it is no archive, is
    damaged in any place (a checksum guards every array), or holds Python objects.
    """
    from numpy.lib import format as npy

    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                _demand_modest(archive, file)
                members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
            file.seek(-12 - len(archive.comment), io.SEEK_END)  # the number of members, which zipfile does not check
            if int.from_bytes(file.read(2), "little") != len(members):
                raise ValueError("its directory is damaged")
            return {name: npy.read_array(io.BytesIO(data), allow_pickle=False) for name, data in members.items()}
        except Exception as wrong:  # damage has no end of ways to show: zlib, struct, key, value, memory errors, …
            raise SpecError(f"{path}: must be {what} ({str(wrong) or type(wrong).__name__})") from None


def _demand_modest(archive: zipfile.ZipFile, file: BinaryIO) -> None:
    """Raise `ValueError` where a small file says that it unpacks to what no machine holds."""
    unpacked = sum(member.file_size for member in archive.infolist())
    packed = file.seek(0, io.SEEK_END)
    most = max(_MODEST_BYTES, _MOST_TIMES * packed)
    if unpacked > most:
        raise ValueError(f"{packed:,} bytes that unpack to {unpacked:,}: at most {most:,} are taken")


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], compress: bool = False) -> Path:
    """Write an `.npz` under exactly this name, making directories that are missing; see `write_files`."""
    import numpy as np

    packed = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(packed, **arrays)  # type: ignore[arg-type]
    return write_files(Path(path).parent, {Path(path).name: packed.getvalue()})[0]
