"""What a spec may be: every reason against it at once, whatever stage finds it, and one text a spec."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import ptxgen
from ptxgen import SpecError, generate, make_spec, rules, supports
from ptxgen.dtypes import DTYPES
from ptxgen.kernel import KernelType
from ptxgen.kernels import FlashDecodingReduce, IncrementalAttention, KvCacheScatter
from ptxgen.spec.legality import choices, stand_ins
from tests.support.draws import beside
from tests.support.kernels import NAMES, TYPES, usual_target

ATTENTION = [name for name, cls in TYPES.items() if "soft_cap" in {f.name for f in dataclasses.fields(cls)}]
PLAIN = {"max_len": 64, "head_dim": 64, "n_heads": 2, "n_kv_heads": 2}


# -- factors of the softmax --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
def test_factors_within_the_range_give_texts_without_infinity_or_zero(name: str, target: str) -> None:
    for scale in (1e-18, 1e18, None):
        for soft_cap in (1e-18, 1e18, 0.0):
            text = generate(make_spec(name, {**PLAIN, "scale": scale, "soft_cap": soft_cap}), target).text
            scaled = [line for line in text.splitlines() if "mul.f32" in line and "0f7F800000" in line]
            assert not scaled
            assert not any(", 0f00000000;" in line for line in text.splitlines() if "mul.f32" in line)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize(
    "fields", [{"scale": 1e39}, {"scale": 1e-60}, {"scale": float("nan")}, {"soft_cap": 1e39}, {"soft_cap": 1e-46}]
)
def test_factors_that_f32_loses_are_refused(name: str, fields: dict[str, float]) -> None:
    ((field, value),) = fields.items()
    (reason,) = supports({"kernel_type": name, **PLAIN, **fields}, "sm_80").reasons
    assert reason.startswith(f"{field}: must be a ")
    assert f"(got {value}" in reason


def test_the_nearest_factor_keeps_the_sign_where_it_counts() -> None:
    def nearest(name: str, scale: float) -> str:
        (reason,) = supports({"kernel_type": name, **PLAIN, "scale": scale}, "sm_80").reasons
        return reason.partition("nearest: ")[2]

    assert nearest("incremental_attention", -1e30) == "-1e+18)"
    assert nearest("multi_head_attention", -1e30) == "1e-18)"


# -- every reason, whatever stage finds it -----------------------------------------------------------------------------

STAGES: dict[str, Any] = {
    "dtype and rule": ({"kv_dtype": "q4", "head_dim": 100}, "sm_90", ["kv_dtype", "head_dim"]),
    "two types": ({"max_len": 64.5, "head_dim": "64"}, "sm_90", ["max_len", "head_dim"]),
    "name and rule": ({"hed_dim": 64, "head_dim": 100}, "sm_90", ["hed_dim", "head_dim"]),
    "rule and target": ({"head_dim": 100}, "sm_70", ["head_dim", "target"]),
    "type and target rule": ({"max_len": "8", "programmatic": True}, "sm_80", ["max_len", "programmatic"]),
    "name and target rule": ({"colour": 1, "programmatic": True}, "sm_80", ["colour", "programmatic"]),
    "two related rules and target rule": (
        {"n_heads": 3, "programmatic": True, "page_size": 24}, "sm_80",
        ["n_heads", "page_size", "page_size", "programmatic"],
    ),
    "all": (
        {"colour": 1, "kv_dtype": 7, "scale": "half", "head_dim": 1, "window": -1, "programmatic": True}, "sm_80",
        ["colour", "kv_dtype", "scale", "head_dim", "window", "programmatic"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAGES)
def test_reasons_of_all_stages_come_at_once(case: str) -> None:
    fields, target, named = STAGES[case]
    reasons = supports({"kernel_type": "incremental_attention", **PLAIN, **fields}, target).reasons
    assert [reason.partition(":")[0] for reason in reasons] == named
    with pytest.raises(SpecError) as refused:
        make_spec("incremental_attention", {**PLAIN, **fields}, [target])
    assert str(refused.value).splitlines() == [f"IncrementalAttention.{reason}" for reason in reasons]


def test_a_field_that_has_no_value_is_in_no_other_reason() -> None:
    (reason,) = supports({"kernel_type": "incremental_attention", **PLAIN, "n_kv_heads": None}, "sm_90").reasons
    assert reason == "n_kv_heads: must be an int (got None)"


# Legal specs whose fields bound each other, wider than any golden's.
WIDE = (
    ("incremental_attention", {**PLAIN, "max_len": 4096, "window": 100, "batched": True, "page_size": 48}),
    ("flash_decoding_chunk", {**PLAIN, "max_len": 4096, "window": 100}),
    ("rope", {"head_dim": 128, "n_heads": 2, "rotary_dim": 64, "freq_factors": (2.0,) * 32}),
    ("rope", {"head_dim": 128, "n_heads": 2, "scaling": "llama3", "low_freq_factor": 8.0, "high_freq_factor": 9.0}),
    ("rope_kv_append", {"max_len": 64, "head_dim": 24, "n_heads": 24, "n_kv_heads": 8, "freq_factors": (2.0,) * 12}),
)
LEGAL = [*WIDE, *((name, fields) for name, cls in TYPES.items() for fields in cls.goldens)]


@pytest.mark.parametrize(("name", "fields"), LEGAL)
def test_a_legal_spec_without_one_of_its_values_has_one_reason(name: str, fields: dict[str, object]) -> None:
    """Bounds that come from what stands in for the value are none of the spec's."""
    cls = TYPES[name]
    usual = usual_target(cls)
    where = usual if supports({"kernel_type": name, **fields}, usual) else "sm_90a"  # what only wgmma does
    assert supports({"kernel_type": name, **fields}, where), f"{beside(cls, 'goldens')}: {fields}"
    for field in dataclasses.fields(cls):
        without = {key: value for key, value in fields.items() if key != field.name}
        for broken in ({}, {field.name: object}):
            needed = broken or field.default is dataclasses.MISSING
            if needed or supports({"kernel_type": name, **without}, where):
                reasons = supports({"kernel_type": name, **without, **broken}, where).reasons
                assert [reason.partition(":")[0] for reason in reasons] == [field.name] * bool(needed)


def test_a_bound_by_a_missing_field_is_no_reason() -> None:
    fields = {"kernel_type": "incremental_attention", "head_dim": 64, "n_heads": 8, "n_kv_heads": 2, "window": 100}
    assert supports(fields, "sm_90").reasons == ("max_len: is needed and has no default",)
    fields = {"kernel_type": "rope", "head_dim": "128x", "rotary_dim": 64, "n_heads": 2}
    assert supports(fields, "sm_90").reasons == ("head_dim: must be an int (got '128x')",)


def test_what_is_wrong_besides_a_missing_field_is_said() -> None:
    fields = {"head_dim": 100, "n_heads": 3, "n_kv_heads": 2, "window": 100, "soft_cap": -1, "programmatic": True}
    reasons = supports({"kernel_type": "incremental_attention", **fields}, "sm_80").reasons
    assert [r.partition(":")[0] for r in reasons] == ["max_len", "head_dim", "n_heads", "soft_cap", "programmatic"]


NEEDED = [(name, f) for name, cls in TYPES.items() for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]


@pytest.mark.parametrize(("name", "field"), NEEDED, ids=lambda part: getattr(part, "name", part))
def test_every_needed_field_has_several_stand_ins(name: str, field: dataclasses.Field) -> None:
    assert len(set(stand_ins(TYPES[name], field))) > 1, "goldens have one value of it only"


@pytest.mark.parametrize("name", NAMES)
def test_a_dtype_that_does_not_exist_is_answered_with_those_of_the_kernel(name: str) -> None:
    cls = TYPES[name]
    for field in (f for f, annotation in cls.__annotations__.items() if annotation == "DType"):
        offered = choices(cls, field)
        assert offered, f"{beside(cls, field)}: rules() must list its types, by rules.one_of"
        (reason,) = supports({"kernel_type": name, **cls.goldens[0], field: "q4"}, usual_target(cls)).reasons
        assert reason == f"{field}: must be one of {', '.join(offered)} (got q4)"
        taken = [kind for kind in DTYPES if not _against(cls, field, kind)]
        assert taken == [kind for kind in DTYPES if kind in offered]


def _against(cls: type[KernelType], field: str, value: str) -> list[str]:
    reasons = supports({"kernel_type": cls.kernel_name, **cls.goldens[0], field: value}, "sm_90").reasons
    return [reason for reason in reasons if reason.startswith(f"{field}:")]


# -- one text and one name a spec --------------------------------------------------------------------------------------


def test_equal_specs_have_equal_texts() -> None:
    zero, minus = (IncrementalAttention(**PLAIN, soft_cap=value) for value in (0.0, -0.0))
    assert zero == minus
    assert repr(zero) == repr(minus)
    assert generate(zero, "sm_80").text == generate(minus, "sm_80").text


def test_different_numbers_have_different_slugs() -> None:
    scales = (0.12345678, 0.12345679, 0.125, 1e-5, 1e5, 100000.5, 1e17)
    slugs = [IncrementalAttention(**PLAIN, scale=scale).slug for scale in scales]
    assert len(set(slugs)) == len(scales)
    assert slugs[2:5] == ["l64_d64_h2_kv2_scale0p125", "l64_d64_h2_kv2_scale1em05", "l64_d64_h2_kv2_scale100000"]


def test_specs_made_by_keyword_by_mapping_and_by_name_are_equal() -> None:
    fields = {"max_len": 64, "head_dim": 64, "n_kv_heads": 2, "kv_dtype": "int8"}
    assert make_spec("kv-cache-scatter", fields) == KvCacheScatter(**fields)
    assert hash(make_spec("FlashDecodingReduce", {"head_dim": 64, "n_heads": 2, "max_chunks": 2})) == hash(
        FlashDecodingReduce(64, 2, 2)
    )


def test_a_constructor_says_of_its_fields_what_make_spec_says() -> None:
    for fields in ({**PLAIN, "windows": 3}, {"max_len": 64}, {"max_len": 6.5, "heads": 2}):
        with pytest.raises(SpecError) as of_name:
            make_spec("incremental-attention", fields)
        with pytest.raises(SpecError) as of_class:
            IncrementalAttention(**fields)
        assert str(of_class.value) == str(of_name.value)
    with pytest.raises(TypeError, match="multiple values for argument 'max_len'"):
        IncrementalAttention(64, max_len=64)
    with pytest.raises(TypeError, match="positional arguments but 41 were given"):
        IncrementalAttention(*range(40))
    spec = IncrementalAttention(**PLAIN)
    assert pickle.loads(pickle.dumps(spec)) == copy.copy(spec) == spec


def test_a_star_imports_every_kernel_type() -> None:
    names: dict[str, object] = {}
    exec("from ptxgen.kernels import *", names)
    assert {cls.__name__ for cls in TYPES.values()} <= names.keys()


def test_a_number_that_is_none_has_no_nearest() -> None:
    reasons = list(rules.between("theta", float("nan"), 1.0, 2.0))
    assert reasons == ["theta: must be from 1.0 to 2.0 (got nan)"]


def test_the_documents_example_says_what_supports_says() -> None:
    document = Path(__file__).resolve().parents[2] / "docs" / "targets-and-requirements.md"
    (session,) = re.findall(r"```pycon\n(.*?)```", document.read_text(), re.DOTALL)
    names = {"ptxgen": ptxgen, "KvCacheScatter": KvCacheScatter}
    example = doctest.DocTestParser().get_doctest(session, names, document.name, str(document), 0)
    assert len(example.examples) == 3
    assert doctest.DocTestRunner().run(example).failed == 0


# -- what an author forgets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returned", [None, "dim: must be even"])
def test_rules_that_return_are_named(returned: Any) -> None:
    class Returns(KernelType):
        kernel_name = "returns"

        def rules(self) -> Any:
            return returned

    with pytest.raises(SpecError, match=rf"Returns.rules: must yield every reason, by `yield from` \(got {returned!r}"):
        dataclasses.dataclass(frozen=True)(Returns)()


def test_what_a_kernel_type_lacks_is_named() -> None:
    class Bare(KernelType):
        kernel_name = "bare"

    bare = dataclasses.dataclass(frozen=True)(Bare)()
    with pytest.raises(NotImplementedError, match=r"Bare\.params: the kernel type has none"):
        generate(bare, "sm_80")
    with pytest.raises(NotImplementedError, match=r"Bare\.reference: the kernel type has none"):
        bare.reference()
