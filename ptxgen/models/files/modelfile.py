"""`ModelFile`: an opened model, whatever its format. Owns what a file must hold for its `ModelSpec`; reads no bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import dtype
from ptxgen.errors import FileError
from ptxgen.models.spec import ModelSpec

if TYPE_CHECKING:
    from ptxgen.models.text import Text

Source = dict[str, np.ndarray]
PLAIN = ("f32", "f16", "bf16")  # formats of vectors, and of matrices that are not quantised
SCALED_ROWS = 128  # that share a scale of e4m3_block
_SHOWN = 3  # names in an error


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file: its weight format by name, outputs and inputs. A vector of n has rows 1, cols n."""

    format: str
    rows: int
    cols: int


@dataclass(frozen=True)
class Held:
    """A tensor as a reader finds it: what it is, its arrays when asked, and its name in the file for errors; `origin`:
    the file's own tensor, where this one is quantised from it."""

    info: TensorInfo
    read: Callable[[], Source]
    name: str
    origin: Held | None = None


@dataclass(frozen=True)
class ModelFile:
    """A model: its architecture, its tensors by name, and where they lie.

    Names are Hugging Face's without prefix, none fused: `embed_tokens`, `layers.3.q_proj`, `layers.3.q_proj.bias`,
    `layers.3.input_layernorm`, `norm`, `lm_head`.
    """

    path: Path
    kind: str
    spec: ModelSpec
    tensors: Mapping[str, TensorInfo]
    held: Mapping[str, Held]
    open_text: Callable[[], Text]

    def read(self, name: str) -> Source:
        """The source arrays of a tensor's weight format, views of the mapped file where the format allows it.

        `{"blocks": uint8 [rows, bytes]}` of GGUF's block formats; `{"weight": [rows, cols]}` of f32, f16, bf16 and,
        with `"scale"`, e4m3; `{"qweight": uint8 [rows, cols], "scales": f16 [rows, groups], "zeros": uint8 [rows,
        groups]}` of int4. A vector is `{"weight": f32 [n]}`.
        """
        return self.held[name].read()

    def stored(self, name: str) -> Source:
        """The arrays that the file itself has of a tensor, where `read` quantises them; otherwise as `read`."""
        held = self.held[name]
        return (held.origin or held).read()

    def values(self, name: str) -> np.ndarray:
        """A tensor in float32, `[rows, cols]` or `[n]`."""
        from ptxgen.weights import weight_format

        source, info = self.read(name), self.tensors[name]
        if is_vector(name):
            return source["weight"]
        return weight_format(info.format).dequantise(source, info.rows, info.cols)

    def text(self) -> Text:
        """The file's tokenizer. Raises `FileError` where it has none, or one that is not covered."""
        with extra(self.path):
            return self.open_text()


@contextmanager
def extra(path: Path) -> Iterator[None]:
    """Say which package of the extra `models` a file needs, where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as missing:
        what = f"needs the package {missing.name}, which is not installed"
        raise FileError(f"{path}: {what}: pip install 'ptxgen[models]'") from None


def is_vector(name: str) -> bool:
    """Whether the tensor of this name is a norm's weight or a bias, f32 on a device; the others are matrices."""
    return name.endswith((".bias", "norm"))


def unfused(spec: ModelSpec) -> ModelSpec:
    """The same model with products of their own where the family's files hold several as one."""
    return replace(spec, block=replace(spec.block, fused=False))


def assemble(
    path: Path,
    kind: str,
    spec: ModelSpec,
    held: Mapping[str, Held],
    open_text: Callable[[], Text],
    theirs: Callable[[str], str] = str,
) -> ModelFile:
    """The model of what was found: exactly the tensors of `spec`, each of its shape, each in a format that can be had.

    `theirs`: what the file would call a tensor of our name. Raises `FileError` naming the tensors otherwise.
    """
    spec = unfused(spec)
    wanted = spec.tensors()
    if missing := list(dict.fromkeys(theirs(name) for name in wanted if name not in held)):
        raise FileError(f"{path}: lacks {_some(missing)}, which this {spec.shape.family} model needs")
    if extra := [f"{one.name} ({one.info.format})" for name, one in held.items() if name not in wanted]:
        raise FileError(f"{path}: holds {_some(extra)}, for which a {spec.shape.family} model has no use here")
    for name, shape in wanted.items():
        info = held[name].info
        has = (info.cols,) if is_vector(name) and info.rows == 1 else (info.rows, info.cols)
        if has != shape:
            raise FileError(f"{path}: {held[name].name}: must have shape {list(shape)} (got {list(has)})")
        _check_format(path, name, held[name])
    return ModelFile(path, kind, spec, {name: held[name].info for name in wanted}, dict(held), open_text)


def _check_format(path: Path, name: str, held: Held) -> None:
    from ptxgen.weights import weight_format

    info = held.info
    if is_vector(name):
        if info.format not in PLAIN:
            raise FileError(f"{path}: {held.name}: a vector must be f32, f16 or bf16 (got {info.format})")
        return
    for reason in weight_format(info.format).rules(info.rows, info.cols):
        raise FileError(f"{path}: {held.name} ({info.format}): {reason}")


def _some(names: list[str]) -> str:
    """The first few of some names."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def sliced(read: Callable[[], Source], rows: int, start: int, stop: int) -> Callable[[], Source]:
    """Rows `start` to `stop` of a matrix of `rows`: what a family's files fuse is taken apart."""
    return lambda: {key: rows_of(array, rows, start, stop) for key, array in read().items()}


def rows_of(array: np.ndarray, rows: int, start: int, stop: int) -> np.ndarray:
    """What of a matrix's array belongs to its rows `start` to `stop`: rows, or scales of blocks of rows, of which
    `start` begins one."""
    if array.size == 1:  # one scale of the whole tensor
        return array
    if len(array) == rows:
        return array[start:stop]
    return array[start // SCALED_ROWS : -(-stop // SCALED_ROWS)]


def plain(raw: np.ndarray, format: str, shape: tuple[int, ...]) -> Source:
    """A file's little-endian bytes of f32, f16, bf16 or e4m3 as `weight`; a vector in f32."""
    weight = raw.view(dtype(format).numpy).reshape(shape)
    return {"weight": weight.astype(np.float32) if len(shape) == 1 else weight}
