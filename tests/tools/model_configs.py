"""Writes docs/model-configs.md, the families and keys of `config.json`, from the tables that read them.

python -m tests.tools.model_configs
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.report.sentence import show_help
from ptxgen.models.config import keys
from ptxgen.models.config.families import FAMILIES, Family
from ptxgen.models.config.rope import SCALINGS, scaling_keys
from ptxgen.models.spec import BLOCKS
from ptxgen.models.survey import survey
from tests.support.models.config_cases import LIKE_LLAMA
from tests.tools.record.attention import RECORD

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
PAGE = Path(__file__).parents[2] / "docs" / "model-configs.md"
HEAD = """# Model configurations

Which models' `config.json` ptxgen reads, and what every key of it does. `ptxgen generate --config config.json` and
`ptxgen export --config` make the kernels of such a model. Attention and KV-cache kernels are made for all families
below; for whole models (`--weights`, `complete`) see [model files](model-files.md).

- [Models](#models): real models, and whether they are served
- [Families](#families): windows, rotation and scale of each, and [types of rope_scaling](#types-of-rope_scaling)
- Keys that [change attention](#keys-that-change-attention), keys of [the whole model](#keys-of-the-whole-model), keys
  [without effect](#keys-without-effect)

Written by `python -m tests.tools.model_configs` from the tables in `ptxgen/models` and the configurations in
`tests/data/configs`; do not edit.
"""
ABOUT = (
    "Every key that can change attention, RoPE or shapes is either understood, or refused by name: exit code 2, and a "
    "sentence with the key, its value and what would work. An unknown key gives a warning that names it; with "
    "`--strict` it is an error. `ptxgen doctor --config DIR` says for every configuration in a folder whether it is "
    "served, served with a warning, or refused, and why; it exits with 1 if one is refused. This is about attention "
    "and KV-cache kernels; its column `decodes` says whether the whole model is covered, too.\n",
    "A key that is absent has the default of the family's own class, and so has the longest context "
    "(`max_position_embeddings`). null means none: as many KV heads as query heads, no window, no cap. RoPE's base and "
    "the rotated part of a head cannot be null. `hidden_size`, `num_hidden_layers`, `num_attention_heads` and "
    "`vocab_size` are required.\n",
)


def page() -> str:
    """The whole document."""
    parts = [HEAD, *ABOUT, *_models(), *_families(), *_scalings(), *_keys()]
    return "\n".join(parts).rstrip() + "\n"


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _models() -> Iterator[str]:
    yield "## Models\n"
    yield (
        "What `ptxgen doctor --config tests/data/configs` prints. The configurations have the shapes of real models, "
        "written down from memory (the lists of phi-4-mini's longrope are made up). Each that is served, with a "
        "warning or without, equals transformers' own classes in `python -m tests.tools.compare_configs "
        "tests/data/configs`, which a test runs if torch and transformers are installed.\n"
    )
    yield _row(("model", "attention", "decodes", "reason"))
    yield _row(["---"] * 4)
    for one in sorted(survey(CONFIGS), key=lambda one: Path(one.model).name):
        yield _row((Path(one.model).stem, one.verdict, "yes" if one.decodes else "no", "; ".join(one.reasons)))
    yield ""


def _families() -> Iterator[str]:
    versions = json.loads(RECORD.read_text())["versions"]
    yield "## Families\n"
    yield (
        "Attention and KV-cache kernels are made for all families, whole models (`--weights`, `complete`) for "
        f"{', '.join(BLOCKS)}.\n\n"
        "Heads, windows, scales, rotated queries and attention's output of each family equal those of transformers "
        f"{versions['transformers']}, as recorded in `tests/data/attention.json` by "
        "`python -m tests.tools.record.attention`. If torch is installed (the extra `oracle`), the tests compare with "
        "transformers' models directly, and `python -m tests.tools.compare_configs DIR` does so for a folder. "
        "Defaults, heads, windows and bases are compared with the configuration classes, which need no torch. "
        f"transformers has no class for {' and '.join(LIKE_LLAMA)}; they are read as llama.\n"
    )
    yield _row(("model_type", "windows", "layers that rotate", "rotation", "factor of q·k", "besides"))
    yield _row(["---"] * 6)
    for name, family in FAMILIES.items():
        if family.nested:
            where = f"the text model: {family.nested} of type {family.inner}"
            yield _row((name, where, "", "", "", "or at the top" if family.flat else ""))
        else:
            yield _row((name, *_facts(family)))
    yield ""
    limits = {limit.key: limit for family in FAMILIES.values() for limit in family.limits}
    yield "Refused if the cache is longer than the context for which the key has no effect (`--max-len` limits it):\n"
    for limit in limits.values():
        of = ", ".join(name for name, family in FAMILIES.items() if limit in family.limits)
        yield f"- `{limit.key}` in {of}: {limit.why}"
    yield ""


def _facts(family: Family) -> tuple[str, ...]:
    pairs = "halves" if family.rope_style == "neox" else "neighbours"
    part = f", {family.rotary:g} of a head by default" if family.rotary else ""
    more = [f"`{key}` must be {value}" for key, value in family.fixed.items()]
    more += ["sinks"] if family.sinks else []
    more += ["scores may be capped"] if family.capped else []
    more += [f"`{family.local_theta}` is the base of layers with a window"] if family.local_theta else []
    more += [f"`{key}` is called `{theirs}`" for key, theirs in family.names.items()]
    more += [family.note] if family.note else []
    return family.windows.said, family.rotates.said, pairs + part, family.scale.said, "; ".join(more)


def _scalings() -> Iterator[str]:
    yield "## Types of rope_scaling\n"
    yield (
        "The type is `rope_type` or `type` in `rope_scaling` or `rope_parameters`. A key that belongs to another type "
        "gives a warning.\n"
    )
    yield _row(("type", "keys"))
    yield _row(["---"] * 2)
    for name in SCALINGS:
        yield _row((name, _listed(scaling_keys(name))))
    yield ""
    yield (
        "**dynamic** is served up to `max_position_embeddings`, where its frequencies begin to change with the length. "
        "**mrope** is served for positions of text.\n\n"
        "**longrope.** The length of the cache decides, as in llama.cpp and vLLM: up to the original context the "
        "kernels use `short_factor`; beyond it they use `long_factor` at every length, which gives a warning. Both "
        "equal transformers' for sequences of that length. transformers decides by a sequence's length so far. Keys "
        "rotated by the one list do not go with queries rotated by the other, so when the length passes the original "
        "context `generate` drops the cache and computes it again, but only for phi3, phimoe and phi4_multimodal. For "
        "sequences that stay within the original context, `--max-len` up to it gives what transformers computes.\n\n"
        "**Two bases.** In families whose layers with a window have another base, `rope_scaling` is one table, for the "
        "full layers; `rope_parameters` may have a table for each type of layer. What transformers ignores there is "
        "refused: `type` for `rope_type` in the one, `truncate: false`, and the original context beside a table.\n"
    )


def _keys() -> Iterator[str]:
    yield "## Keys that change attention\n"
    yield "A family that does not read a key refuses it, unless it has one of the values in the last column.\n"
    yield _row(("key", "refused because", "but not"))
    yield _row(["---"] * 3)
    for name, key in sorted({**keys.CHANGES, **keys.STYLES["neox"]}.items()):
        works = [json.dumps(one) for one in key.harmless] + ([f"the model's {key.same}"] if key.same else [])
        works += [f"what `{key.twin}` is"] if key.twin else []
        yield _row((f"`{name}`", key.why, ", ".join([*(["null"] if key.null else []), *works])))
    yield "\n## Keys of the whole model\n"
    yield "They do not affect attention's kernels. With `--weights` a family that does not read a key refuses it.\n"
    yield _listed(keys.MODEL) + "\n"
    yield "These are read with `--weights`, or together with one of those:\n"
    yield _listed(keys.WHOLE) + "\n"
    yield "## Keys without effect\n"
    yield _listed(keys.WITHOUT_EFFECT) + "\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    show_help(__doc__)
    PAGE.write_text(page())
