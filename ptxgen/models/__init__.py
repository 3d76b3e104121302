"""Models: from a `config.json` or a model file to the `Program` of a step. Owns no kernels.

- `config/`: a model's attention shape, read from its Hugging Face `config.json`; its names are those of this package.
- `spec`: a whole model but its weights. `files/`: model files. `text/`: text to tokens and back.
- `program`: a step as data. `step/` makes it from a model; `persistent/` puts its layers into one launch.
- `attention`, `caches`: attention alone, and how keys and values are kept.
- What is made of a Program: `arena` (scratch memory), `packing` (weights as bytes), `plan` (the kernels of a model),
  `memory_plan` (what a model takes on a device).
- `reference`: a model in float64. `survey`: what is served of a folder of configurations.
"""

from __future__ import annotations

from ptxgen.models.config.fields import config_fields, read_config
from ptxgen.models.config.kv_scheme import KvScheme
from ptxgen.models.config.reader import load_config, model_shape
from ptxgen.models.config.shape import LayerKind, ModelShape
from ptxgen.models.config.warned import config_warnings

__all__ = [
    "KvScheme",
    "LayerKind",
    "ModelShape",
    "config_fields",
    "config_warnings",
    "load_config",
    "model_shape",
    "read_config",
]


def __dir__() -> list[str]:
    return __all__
