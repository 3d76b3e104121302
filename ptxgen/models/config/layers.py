"""What differs from layer to layer: windows and rotation. One function per way of saying it, beside the keys it reads.

Windows are numbers of latest positions, 0 for all; a layer rotates or does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ptxgen.files.jsonfields import Fields

T = TypeVar("T")
_SWITCH = "use_sliding_window"
_TYPED = ("sliding_window", "layer_types")
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


@dataclass(frozen=True)
class ByLayer(Generic[T]):
    """A value for each layer: `of(config, number of layers)`, which reads `keys`; what it does, in words."""

    said: str
    of: Callable[[Fields, int], list[T]]
    keys: tuple[str, ...] = ()


def layer_types(read: Fields, n_layers: int, kinds: tuple[str, ...] = (FULL, SLIDING)) -> list[str] | None:
    """The list of that name, None where it is absent. Raises `SpecError` for other words and another length."""
    types = read.values.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != n_layers or any(one not in kinds for one in types):
        raise read.error("layer_types", f"must list {' or '.join(kinds)} for {n_layers} layers")
    return types


def _typed(read: Fields, n_layers: int, slides: Callable[[int], bool], switch: str = "") -> list[int]:
    """`layer_types` where the config lists them, else the family's rule. A null window is none; `switch`: the key that
    has to be true for one."""
    window = 0 if switch and not read.flag(switch) else read.count("sliding_window", 0)
    types = layer_types(read, n_layers)
    if types is not None and SLIDING in types and not window:
        needed = f"{switch} and a sliding_window" if switch else "a sliding_window"
        raise read.error("layer_types", f"must be {n_layers} times {FULL} without {needed}")
    listed = [slides(layer) for layer in range(n_layers)] if types is None else [one == SLIDING for one in types]
    return [window if one else 0 for one in listed]


def _none(read: Fields, n_layers: int) -> list[int]:
    return [0] * n_layers


def _every(read: Fields, n_layers: int) -> list[int]:
    return [read.count("sliding_window", 0)] * n_layers


def _from_a_layer(read: Fields, n_layers: int) -> list[int]:
    first = read.count("max_window_layers", n_layers, least=0)
    return _typed(read, n_layers, lambda layer: layer >= first, _SWITCH)


def _below_a_layer(read: Fields, n_layers: int) -> list[int]:
    end = read.count("max_window_layers", n_layers, least=0)
    return _typed(read, n_layers, lambda layer: layer % 2 == 0 and layer < end, _SWITCH)


def _switched(read: Fields, n_layers: int) -> list[int]:
    return _every(read, n_layers) if read.flag(_SWITCH) else [0] * n_layers


def _unrotated(read: Fields, n_layers: int) -> list[int]:
    rotates = _listed(read, n_layers)
    return _typed(read, n_layers, lambda layer: not rotates[layer], _SWITCH)


def _must_slide(read: Fields) -> None:
    """Refuse a config that leaves open what layers without the window that they should have do."""
    if read.values.get("sliding_window") is None and read.values.get("layer_types") is None:
        raise read.error("sliding_window", "must be an integer where layer_types does not list the layers")


def _pattern(read: Fields, n_layers: int) -> list[int]:
    _must_slide(read)
    if read.values.get("layer_types") is not None:
        return _typed(read, n_layers, lambda layer: False)  # newer files list the layers; the pattern may be text there
    pattern = read.count("sliding_window_pattern", read.count("_sliding_window_pattern", 0))
    return _typed(read, n_layers, lambda layer: pattern > 0 and (layer + 1) % pattern != 0)


def _but_every(period: int, said: str) -> ByLayer[int]:
    """A pattern that only `layer_types` changes."""

    def windows(read: Fields, n_layers: int) -> list[int]:
        _must_slide(read)
        return _typed(read, n_layers, lambda layer: (layer + 1) % period != 0)

    return ByLayer(said, windows, _TYPED)


def _pattern_if_any(read: Fields, n_layers: int) -> list[int]:
    if read.values.get("sliding_window") is None:
        return _typed(read, n_layers, lambda layer: False)
    return _pattern(read, n_layers)


def _chunked(read: Fields, n_layers: int) -> list[int]:
    layer_types(read, n_layers, (FULL, CHUNKED))
    return [0] * n_layers


NO_WINDOW = ByLayer("none", _none)
EVERY_LAYER = ByLayer("all layers", _every, ("sliding_window",))
FROM_A_LAYER = ByLayer(
    "with use_sliding_window, from layer max_window_layers on", _from_a_layer,
    (*_TYPED, _SWITCH, "max_window_layers"),
)  # fmt: skip
BELOW_A_LAYER = ByLayer(
    "with use_sliding_window, every other layer below max_window_layers", _below_a_layer,
    (*_TYPED, _SWITCH, "max_window_layers"),
)  # fmt: skip
SWITCHED = ByLayer("with use_sliding_window, all layers", _switched, ("sliding_window", _SWITCH))
UNROTATED_LAYERS = ByLayer("with use_sliding_window, layers that do not rotate", _unrotated, (*_TYPED, _SWITCH))
ALTERNATE = _but_every(2, "every other layer, from the first")
PATTERN = ByLayer(
    "all but every sliding_window_pattern-th layer", _pattern,
    (*_TYPED, "sliding_window_pattern", "_sliding_window_pattern"),
)  # fmt: skip
BUT_EVERY_FOURTH = _but_every(4, "all but every fourth layer")
BUT_EVERY_FIFTH = _but_every(5, "all but every fifth layer")
PATTERN_IF_ANY = ByLayer(PATTERN.said, _pattern_if_any, PATTERN.keys)
CHUNKED_LAYERS = ByLayer("none; chunks, as far as the cache ends before the second", _chunked, ("layer_types",))


# -- layers that rotate ------------------------------------------------------------------------------------------------


def _all_rotate(read: Fields, n_layers: int) -> list[bool]:
    return [True] * n_layers


def _listed(read: Fields, n_layers: int) -> list[bool]:
    """`no_rope_layers` holds 1 for a layer that rotates; without it every fourth layer does not."""
    listed = read.values.get("no_rope_layers")
    if listed is None or listed == []:
        interval = read.count("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(n_layers)]
    if not isinstance(listed, list) or len(listed) != n_layers or any(one not in (0, 1) for one in listed):
        raise read.error("no_rope_layers", f"must list 0 or 1 for {n_layers} layers")
    return [one == 1 for one in listed]


def _sliding_rotate(read: Fields, n_layers: int) -> list[bool]:
    return [window > 0 for window in _pattern(read, n_layers)]


def _sliding_rotate_if_any(read: Fields, n_layers: int) -> list[bool]:
    if read.values.get("sliding_window") is None:
        return [True] * n_layers
    return _sliding_rotate(read, n_layers)


ALL_ROTATE = ByLayer("all layers", _all_rotate)
LISTED = ByLayer("as no_rope_layers says; else all but every fourth", _listed,
                 ("no_rope_layers", "no_rope_layer_interval"))  # fmt: skip
SLIDING_ROTATE = ByLayer("layers with a window", _sliding_rotate)
SLIDING_ROTATE_IF_ANY = ByLayer("layers with a window; all where there is none", _sliding_rotate_if_any)
