"""The space of specs × targets, drawn at random: what is legal assembles, what is not is refused with every reason.

Driven by the registry: a new kernel type is drawn from as soon as its file is there.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable
from copy import copy
from pickle import dumps, loads
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.kernel import KernelType, kernel_types, make_spec
from tests.support.marks import needs_assembler

NAMES = sorted(kernel_types())
TARGETS = (
    "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121",
)  # fmt: skip
GROUPS = (*range(1, 17), 24, 32, 64)  # query heads a KV head
HEAD_DIMS = tuple(range(8, 513, 8))
SIZES = st.integers(0, 17).flatmap(lambda bits: st.integers(1 << bits, (2 << bits) - 1))

# By field name; what is not here keeps its default, or is drawn by its type (bool, DType).
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "max_len": SIZES,
    "head_dim": st.sampled_from(HEAD_DIMS),
    "n_kv_heads": st.sampled_from((1, 2, 3, 4, 8, 16)),
    "n": SIZES,
    "soft_cap": st.sampled_from((0.0, 30.0, 50.0)),
    "scale": st.sampled_from((None, 0.0625, 1.0)),
    "window": st.sampled_from((0, 1, 100, 4096)),
    "page_size": st.sampled_from((0, 16, 64)),
    "style": st.sampled_from(("norm", "neox")),
    "scaling": st.sampled_from(("default", "linear", "llama3")),
    "factor": st.sampled_from((1.0, 8.0)),
    "rotary_dim": st.sampled_from((None, 8, 16, 32)),
    "layout": st.sampled_from(("tokens", "heads")),
    "direction": st.sampled_from(("to_slot", "from_slot")),
    "chunk": st.sampled_from((16, 64, 128, 256)),
}
DTYPES = st.sampled_from(("f32", "f16", "bf16", "f16", "bf16", "e4m3", "s8"))
# How a field is made illegal, for whoever has it.
BROKEN = {"max_len": -1, "head_dim": 100, "n_kv_heads": -1, "kv_dtype": "u16", "q_dtype": "s8", "dtype": "s64", "n": 0}


@st.composite
def fields_of(draw: st.DrawFn, cls: type[KernelType]) -> dict[str, Any]:
    """Fields of a spec; options are mostly left alone, so that many draws are legal."""
    drawn: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        needed = field.default is dataclasses.MISSING
        if field.name == "n_heads":
            continue
        is_dtype = str(field.type) == "DType"
        if not needed and draw(st.integers(0, 9)) >= (8 if is_dtype else 3):
            continue
        if field.name in VALUES:
            drawn[field.name] = draw(VALUES[field.name])
        elif str(field.type) == "bool":
            drawn[field.name] = draw(st.booleans())
        elif is_dtype:
            drawn[field.name] = draw(DTYPES)
        else:
            assert not needed, f"{cls.__name__}.{field.name}: how is it drawn?"
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if "n_heads" in names:
        drawn["n_heads"] = max(1, drawn.get("n_kv_heads", 1)) * draw(st.sampled_from(GROUPS))
    if drawn.get("window"):
        drawn["window"] = min(drawn["window"], drawn.get("max_len", 1))
    return drawn


@needs_assembler
@pytest.mark.parametrize("name", NAMES)
def test_what_is_legal_assembles_and_what_is_not_is_refused_alike_everywhere(name: str) -> None:
    cls = kernel_types()[name]
    seen: Counter[str] = Counter()

    @seed(0)
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(fields_of(cls), st.sampled_from(TARGETS))
    def each(fields: dict[str, Any], where: str) -> None:
        answer = supports({"kernel_type": name, **fields}, where)
        seen["legal" if answer else "illegal"] += 1
        if answer:
            ptx = generate(make_spec(name, fields), where)
            assert assemble(ptx.text, where).resources[ptx.entry].clean, (ptx.spec, where)
            return
        known = {"target", *(f.name for f in dataclasses.fields(cls))}  # type: ignore[arg-type]
        assert all(reason.partition(":")[0].rpartition(".")[2] in known for reason in answer.reasons), answer
        with pytest.raises(SpecError) as refused:
            generate(make_spec(name, fields, [where]), where)
        assert all(reason in str(refused.value) for reason in answer.reasons)

    each()
    assert seen["legal"] >= 10, seen


def takes(name: str, *fields: str) -> bool:
    return set(fields) <= {f.name for f in dataclasses.fields(kernel_types()[name])}  # type: ignore[arg-type]


def least(name: str, **fields: Any) -> KernelType:
    """A spec with the fields that have no default at small values, those given, and f16 where that is a choice."""
    cls = kernel_types()[name]
    small: dict[str, Any] = {"max_len": 1024, "head_dim": 64, "n_heads": 4, "n_kv_heads": 4, "n": 1000}
    needed = {f.name: small[f.name] for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}  # type: ignore[arg-type]
    halves = {f.name: "f16" for f in dataclasses.fields(cls) if str(f.type) == "DType"}  # type: ignore[arg-type]
    return cls(**{**needed, **halves, **fields})


# What `with_options` adds, in this order: what needs another comes after it.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "kv_dtype": ("f16", "bf16", "e4m3", "s8", "f32"),
    "q_dtype": ("f16", "bf16", "f32"),
    "max_len": (1000, 131072),
    "batched": (True,),
    "page_size": (16, 48),
    "causal": (False,),
    "window": (100,),
    "soft_cap": (30.0,),
    "lse": (True,),
    "indirect": (True,),
    "programmatic": (True,),
    "alibi": (True,),
    "sinks": (True,),
    "precise": (True,),
    "style": ("norm",),
    "in_place": (False,),
    "batch_invariant": (True,),
    "ctas": (1, 40),
    "layout": ("heads",),
    "rotary_dim": (8, 48),
    "dtype": ("f32", "bf16"),
    "src_dtype": ("f32", "bf16"),
    "direction": ("from_slot",),
    "max_chunks": (1, 100),
    "scaling": ("linear", "llama3"),
    "n_kv_heads": (1, 2),
    "with_value": (True,),
}
# Fields that are nothing but a number in the text, or in a table of it.
NUMBERS = {
    "scale", "theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_len", "freq_factors",
    "attention_factor",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_field_with_a_default_is_among_the_options(name: str) -> None:
    fields = dataclasses.fields(kernel_types()[name])  # type: ignore[arg-type]
    assert {f.name for f in fields if f.default is not dataclasses.MISSING} <= OPTIONS.keys() | NUMBERS


def with_options(name: str, where: str, rng: random.Random, **fields: Any) -> KernelType:
    """`least`, and each option that goes with the others on this target, or not: half of them."""
    for option, values in OPTIONS.items():
        more = {**fields, option: rng.choice(values)}
        if rng.random() < 0.5 and takes(name, option):
            try:
                fields = more if supports(least(name, **more), where) else fields
            except SpecError:
                continue
    return least(name, **fields)


def spilling(specs: Iterable[tuple[KernelType, str]]) -> list[tuple[KernelType, str]]:
    """Those that do not assemble clean: without spills and local memory."""
    texts = [generate(spec, where) for spec, where in specs]
    return [(p.spec, p.target.name) for p in texts if not assemble(p.text, p.target).resources[p.entry].clean]


@needs_assembler
@pytest.mark.parametrize("name", [name for name in NAMES if takes(name, "head_dim")])
def test_every_head_dim_assembles_without_spills(name: str) -> None:
    rng = random.Random(0)
    wheres = [TARGETS[index % len(TARGETS)] for index in range(len(HEAD_DIMS))]
    specs = (with_options(name, where, rng, head_dim=d) for d, where in zip(HEAD_DIMS, wheres, strict=True))
    assert not spilling(zip(specs, wheres, strict=True))


@needs_assembler
@pytest.mark.parametrize("name", [name for name in NAMES if takes(name, "n_heads", "n_kv_heads")])
def test_every_group_assembles_without_spills(name: str) -> None:
    wheres = [TARGETS[index % len(TARGETS)] for index in range(len(GROUPS))]
    specs = (least(name, n_heads=2 * group, n_kv_heads=2) for group in GROUPS)
    assert not spilling(zip(specs, wheres, strict=True))


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
    assert not spilling((least(name, **fields), where) for name, where, fields in SPILLED_ONCE)


@pytest.mark.parametrize("name", NAMES)
def test_every_reason_is_given_at_once(name: str) -> None:
    """Each of the fields that are wrong is named, with its value."""
    cls = kernel_types()[name]
    broken = {f.name: BROKEN[f.name] for f in dataclasses.fields(cls) if f.name in BROKEN}  # type: ignore[arg-type]
    reasons = supports({"kernel_type": name, **cls.goldens[0], **broken}, "sm_90").reasons
    assert len(broken) > 1
    for field, value in broken.items():
        assert any(reason.startswith(f"{field}: ") and f"got {value}" in reason for reason in reasons), (field, reasons)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_and_missing_fields_are_named_together(name: str) -> None:
    cls = kernel_types()[name]
    needed = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]  # type: ignore[arg-type]
    reasons = supports({"kernel_type": name, "hed_dim": 64, "colour": "red"}, "sm_90").reasons
    assert sorted(r.partition(":")[0] for r in reasons) == sorted([*needed, "hed_dim", "colour"])


def test_a_value_of_the_wrong_type_is_named() -> None:
    wrong = {"kernel_type": "kv_cache_scatter", "max_len": 64.5, "head_dim": "64", "n_kv_heads": True}
    with pytest.raises(SpecError, match=r"KvCacheScatter\.max_len: must be an int \(got 64\.5\)"):
        make_spec("kv_cache_scatter", {k: v for k, v in wrong.items() if k != "kernel_type"})
    assert not supports(wrong, "sm_90")


@pytest.mark.parametrize("name", NAMES)
def test_specs_are_one_key_by_type_and_fields_however_they_are_made(name: str) -> None:
    cls = kernel_types()[name]
    spec = cls(**cls.goldens[0])
    others = [make_spec(name, cls.goldens[0]), dataclasses.replace(spec), copy(spec), loads(dumps(spec))]  # type: ignore[type-var]
    assert {spec: "found"} == dict.fromkeys(others, "found")
    assert vars(spec).keys() == {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    field = next(f.name for f in dataclasses.fields(cls) if type(getattr(spec, f.name)) is int)  # type: ignore[arg-type]
    changed = copy(spec)
    object.__setattr__(changed, field, getattr(spec, field) + 1)
    assert changed != spec
    assert hash(changed) != hash(spec)
    assert spec != vars(spec)
