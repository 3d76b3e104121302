"""llama2.c checkpoints: both versions give their weights; those of another length are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptxgen.errors import FileError
from ptxgen.models.files import open_model
from tests.support.models.raw_files import write_llama2c


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("version", [0, 1])
def test_llama2c_checkpoints_give_their_weights(version: int, tied: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    weights = write_llama2c(path, version, tied)
    model = open_model(path)
    assert model.spec.rope_style == "norm"
    assert model.spec.tied == tied
    assert model.tensors.keys() == weights.keys()
    for name, values in weights.items():
        assert np.array_equal(model.values(name), values), name


def test_a_llama2c_checkpoint_of_another_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    write_llama2c(path, 0, True)
    data = path.read_bytes()
    for size, text in ((len(data) - 4, "lies behind the end|must be"), (len(data) + 4, "must be"), (100, "too short")):
        path.write_bytes(data.ljust(size, b"\0")[:size])
        with pytest.raises(FileError, match=text):
            open_model(path)
    path.write_bytes(np.array([0x616B3432, 2], "<i4").tobytes() + data)
    with pytest.raises(FileError, match=r"version: must be 0 or 1 \(got 2\)"):
        open_model(path)
