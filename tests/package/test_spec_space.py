"""The space of specs × targets, drawn at random: what is legal assembles, what is not is refused with every reason.

Driven by the registry: a new kernel type is drawn from as soon as its file is there, by what stands beside its fields.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable
from copy import copy
from itertools import groupby
from pickle import dumps, loads
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.errors import nearest
from ptxgen.kernel import KernelType, find_kernel_type, make_spec
from ptxgen.packages import own_modules
from ptxgen.spec.legality import choices, draft
from tests.support.draws import beside, domains, fields_of, needed, swept, with_options
from tests.support.kernels import EVERY, NAMES, TYPES, usual_target
from tests.support.marks import needs_assembler
from tests.support.sweep import examples, some

TARGETS = (
    "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121",
)  # fmt: skip


def places_of(cls: type[KernelType]) -> list[str]:
    """The targets, of a kernel type that begins later those that its first golden is for."""
    return [where for where in TARGETS if cls.lowest_target == "sm_75" or supports(cls(**cls.goldens[0]), where)]


@pytest.mark.parametrize("name", own_modules())
def test_a_module_registers_the_kernel_type_of_its_name(name: str) -> None:
    """One that cannot be imported has no other test."""
    assert find_kernel_type(name).kernel_name == name


@pytest.mark.parametrize("name", EVERY)
def test_it_has_goldens(name: str) -> None:
    """Other tests begin with the first of them, and leave out a kernel type without any."""
    assert EVERY[name].goldens, f"{beside(EVERY[name], 'goldens')}: a few small specs are needed"


@needs_assembler
@pytest.mark.parametrize("name", NAMES)
def test_what_is_legal_assembles_and_what_is_not_is_refused_alike_everywhere(name: str) -> None:
    cls = TYPES[name]
    seen: Counter[str] = Counter()

    @seed(0)
    @settings(max_examples=examples(20, 60), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        fields_of(cls), st.sampled_from(places_of(cls)) if usual_target(cls) == "sm_90" else st.just(usual_target(cls))
    )
    def each(fields: dict[str, Any], where: str) -> None:
        answer = supports({"kernel_type": name, **fields}, where)
        seen["legal" if answer else "illegal"] += 1
        if answer:
            ptx = generate(make_spec(name, fields), where)
            assert assemble(ptx.text, where).resources[ptx.entry].clean, (ptx.spec, where)
            return
        known = {"target", *(f.name for f in dataclasses.fields(cls))}
        assert all(reason.partition(":")[0].rpartition(".")[2] in known for reason in answer.reasons), answer
        with pytest.raises(SpecError) as refused:
            generate(make_spec(name, fields, [where]), where)
        assert all(reason in str(refused.value) for reason in answer.reasons)

    each()
    assert seen["legal"], f"{beside(cls, 'rules()')}: every draw is refused; field(draws=…) narrows them ({seen})"


@pytest.mark.parametrize("name", NAMES)
def test_every_field_that_is_needed_says_what_to_draw(name: str) -> None:
    cls = TYPES[name]
    unsaid = [beside(cls, name) for name, known in domains(cls).items() if name in needed(cls) and not known.draws]
    assert not unsaid, f"{', '.join(unsaid)}: give it bounds in rules(), or field(draws=…){strangers(cls)}"


UNLIKELY: dict[str, tuple[object, ...]] = {
    "int": (-(1 << 62),), "float": (float("nan"), 1e39), "str": ("?",), "DType": ("?",),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_a_rule(name: str) -> None:
    """Against numbers that no text can hold (f32 takes 1e39 as infinity), words and types that do not exist.

    A rule may depend on other fields: those of a golden, and each word that a field may be.
    """
    cls = TYPES[name]
    free = {field.name for field in dataclasses.fields(cls) if not field.metadata.get("refuses", True)}
    fields = {field.name: str(field.type).replace(" ", "").removesuffix("|None") for field in dataclasses.fields(cls)}
    words = [{word: value} for word, kind in fields.items() if kind == "str" for value in choices(cls, word)]
    bases = [*cls.goldens, *({**cls.goldens[0], **word} for word in words)]
    for field, kind in fields.items():
        for value in () if field in free else UNLIKELY.get(kind, ()):
            assert any(field in against(cls, {**base, field: value}) for base in bases), (
                f"{beside(cls, field)}: no rule refuses {value}; yield one in rules(), or say field(refuses=()) "
                f"if texts take any value{strangers(cls)}"
            )


@pytest.mark.parametrize("name", NAMES)
def test_rules_are_about_fields(name: str) -> None:
    assert not strangers(TYPES[name]), f"{beside(TYPES[name], 'rules()')}{strangers(TYPES[name])}"


def strangers(cls: type[KernelType]) -> str:
    """The end of a message: what rules are about that is no field."""
    fields = {field.name: str(field.type).replace(" ", "").removesuffix("|None") for field in dataclasses.fields(cls)}
    tried = [{**cls.goldens[0], field: value} for field, kind in fields.items() for value in UNLIKELY.get(kind, ())]
    unknown = sorted({name for each in tried for name in against(cls, each)} - fields.keys())
    return "".join(f"; {name} is no field{nearest(name, fields)}" for name in unknown)


def against(cls: type[KernelType], fields: dict[str, Any]) -> set[str]:
    """What the reasons by the rules are about."""
    try:
        reasons = draft(cls, fields)[1]
    except SpecError as wrong:
        reasons = tuple(str(wrong).splitlines())
    return {reason.partition(":")[0] for reason in reasons}


@pytest.mark.parametrize("name", NAMES)
def test_some_field_says_what_to_draw(name: str) -> None:
    cls = TYPES[name]
    assert any(known.draws for known in domains(cls).values()), f"{beside(cls, '…')}: no field has bounds or draws"


def spilling(specs: Iterable[tuple[KernelType, str]]) -> list[tuple[KernelType, str]]:
    """Those that do not assemble clean: without spills and local memory."""
    texts = [generate(spec, where) for spec, where in specs]
    return [(p.spec, p.target.name) for p in texts if not assemble(p.text, p.target).resources[p.entry].clean]


@needs_assembler
@pytest.mark.parametrize("name", [name for name in NAMES if any(swept(TYPES[name]))])
def test_every_value_that_is_swept_assembles_without_spills(name: str) -> None:
    rng, cls = random.Random(0), TYPES[name]
    specs = []
    of_field = groupby(swept(cls), key=lambda pair: pair[0])
    tried = [pair for _, pairs in of_field for pair in some(pairs, 9)]
    places = places_of(cls)
    for index, (field, value) in enumerate(tried):
        where = places[index % len(places)]
        fixed = {other: cls.goldens[0][other] for other in needed(cls) if other != "max_len"}
        specs.append((with_options(cls, where, rng, **{**fixed, field: value}), where))
    assert specs
    assert not spilling(specs)


LLAMA = {"head_dim": 128, "n_heads": 32, "n_kv_heads": 8}
SPILLED_ONCE = (
    ("multi_head_attention", "sm_80", {**LLAMA, "max_len": 4096, "batched": True, "lse": True}),
    ("multi_head_attention", "sm_89", {**LLAMA, "max_len": 4096, "batched": True, "page_size": 16, "window": 20}),
    ("flash_decoding_chunk", "sm_121a", {"max_len": 4097, "head_dim": 136, "n_heads": 768, "n_kv_heads": 32}),
    ("flash_decoding_chunk", "sm_120", {"max_len": 131072, "head_dim": 504, "n_heads": 1, "n_kv_heads": 1,
                                        "q_dtype": "f32", "kv_dtype": "bf16"}),
)  # fmt: skip


@needs_assembler
def test_what_spilled_once_does_no_more() -> None:
    f16 = {"q_dtype": "f16", "kv_dtype": "f16"}
    assert not spilling((make_spec(name, {**f16, **fields}), where) for name, where, fields in SPILLED_ONCE)


@pytest.mark.parametrize("name", [n for n in NAMES if any(known.refuses for known in domains(TYPES[n]).values())])
def test_every_reason_is_given_at_once(name: str) -> None:
    """Each of the fields that are wrong is named, with its value."""
    cls = TYPES[name]
    broken = {field: known.refuses[0] for field, known in domains(cls).items() if known.refuses}
    reasons = supports({"kernel_type": name, **cls.goldens[0], **broken}, "sm_90").reasons
    for field, value in broken.items():
        assert any(reason.startswith(f"{field}: ") and f"got {value}" in reason for reason in reasons), (
            f"{beside(cls, field)}: no reason of rules() begins with `{field}: ` and says `got {value}`; "
            f"yield one, or name what no spec has by field(refuses=…) (reasons: {reasons})"
        )


@pytest.mark.parametrize("name", NAMES)
def test_unknown_and_missing_fields_are_named_together(name: str) -> None:
    cls = TYPES[name]
    reasons = supports({"kernel_type": name, "hed_dim": 64, "colour": "red"}, usual_target(cls)).reasons
    assert sorted(r.partition(":")[0] for r in reasons) == sorted([*needed(cls), "hed_dim", "colour"])


def test_a_value_of_the_wrong_type_is_named() -> None:
    wrong = {"kernel_type": "kv_cache_scatter", "max_len": 64.5, "head_dim": "64", "n_kv_heads": True}
    with pytest.raises(SpecError, match=r"KvCacheScatter\.max_len: must be an int \(got 64\.5\)"):
        make_spec("kv_cache_scatter", {k: v for k, v in wrong.items() if k != "kernel_type"})
    assert not supports(wrong, "sm_90")


@pytest.mark.parametrize("name", NAMES)
def test_specs_are_one_key_by_type_and_fields_however_they_are_made(name: str) -> None:
    cls = TYPES[name]
    spec = cls(**cls.goldens[0])
    others = [make_spec(name, cls.goldens[0]), dataclasses.replace(spec), copy(spec), loads(dumps(spec))]  # type: ignore[type-var]
    assert {spec: "found"} == dict.fromkeys(others, "found")
    assert vars(spec).keys() == {f.name for f in dataclasses.fields(cls)}
    field, values = next((field, known.values(vars(spec))) for field, known in domains(cls).items() if known.draws)
    changed = copy(spec)
    object.__setattr__(changed, field, next(value for value in values if value != getattr(spec, field)))
    assert changed != spec
    assert hash(changed) != hash(spec)
    assert spec != vars(spec)
