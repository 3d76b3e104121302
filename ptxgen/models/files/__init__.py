"""Model files: GGUF, Hugging Face checkpoints and llama2.c's, all as one `ModelFile`. Owns no packing and no device.

`open_model` reads headers and maps the rest; every fault and everything that is not covered is a `FileError` (or a
`SpecError` of the configuration) here, before a weight is touched. `quantised` gives an opened model's matrices in
another weight format.
"""

from __future__ import annotations

from pathlib import Path

from ptxgen.errors import FileError, SpecError, brief
from ptxgen.files.regular import check_pulled
from ptxgen.models.files.modelfile import ModelFile, Source, TensorInfo, extra
from ptxgen.models.files.quantise import quantised

_READ = "a .gguf file, a folder with config.json and .safetensors files, or a llama2.c checkpoint (.bin)"


def open_model(path: str | Path, max_len: int | None = None) -> ModelFile:
    """The model at `path`: a .gguf file, a folder or .safetensors file with `config.json` beside it, or a llama2.c
    checkpoint (.bin). `max_len` replaces the longest context of its configuration.

    Raises `FileError` for a damaged file and for what is not covered, `SpecError` for a configuration's values.
    """
    if not isinstance(path, str | Path):
        raise SpecError(f"model: must be the path of a file or a folder (got {brief(path)})")
    if str(path) == "":
        raise SpecError("model: must be the path of a file or a folder (got '')")
    path = Path(path)
    try:
        with extra(path):
            return _open(path, max_len)
    except OSError as wrong:
        raise FileError(f"{path}: cannot be read ({wrong.strerror or wrong})") from None


def _open(path: Path, max_len: int | None) -> ModelFile:
    if path.is_dir() or path.suffix == ".safetensors":
        from ptxgen.models.files.checkpoint import open_checkpoint

        return open_checkpoint(path, max_len)
    check_pulled(path)
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix == ".bin" and magic != b"GGUF":
        from ptxgen.models.files.llama2c import open_llama2c

        return open_llama2c(path, max_len)
    if path.suffix != ".gguf" and magic != b"GGUF":
        folder = "; name its folder" if path.suffix == ".json" else ""
        raise FileError(f"{path}: must be {_READ}{folder} (it begins with {magic!r})")
    from ptxgen.models.files.gguf_model import open_gguf

    return open_gguf(path, max_len)


__all__ = ["ModelFile", "Source", "TensorInfo", "open_model", "quantised"]
