"""`ModelShape`: what decides a model's attention and KV-cache kernels. Reads no file."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.models.config.kv_scheme import KvScheme


@dataclass(frozen=True)
class LayerKind:
    """Layers that share kernels. `window` is the number of latest positions a query sees; 0 is all. `rope` None:
    queries and keys do not rotate."""

    name: str
    layers: tuple[int, ...]
    window: int
    rope: RopeSettings | None


@dataclass(frozen=True)
class ModelShape:
    """What decides a model's attention and KV-cache kernels. `scale` None is 1/√head_dim; `soft_cap` 0 is none.

    `rope_style`: "neox" rotates halves of a head, "norm" neighbours. `sinks`: every head has a logit that takes weight
    and gives no value. `kv_scheme`: how the model's own cache is quantised, None where the config does not say.
    """

    family: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    max_len: int
    dtype: str
    scale: float | None
    soft_cap: float
    kinds: tuple[LayerKind, ...]
    rope_style: str = "neox"
    sinks: bool = False
    kv_scheme: KvScheme | None = None

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of every layer; 0: none."""
        found = {layer: kind.window for kind in self.kinds for layer in kind.layers}
        return tuple(found[layer] for layer in range(self.n_layers))
