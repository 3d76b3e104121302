"""Every family's attention equals that of transformers' own classes: heads, windows, scales, rotation, outputs.

The record was made by `tests.tools.record.attention`; where torch and transformers are installed, the classes are asked
themselves.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from ptxgen.models import model_shape
from ptxgen.models.config.families import FAMILIES
from ptxgen.models.plan import plan
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from tests.support.models.attention_oracle import POSITIONS, arguments_of, compare, shape_of, step_of
from tests.support.models.config_cases import CASES, LIKE_LLAMA
from tests.tools import compare_configs, fuzz_configs
from tests.tools.model_configs import CONFIGS
from tests.tools.record.attention import RECORD, record

RECORDED: dict[str, Any] = json.loads(RECORD.read_text())["cases"]


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_the_record(name: str) -> None:
    compare(shape_of(*CASES[name]), RECORDED[name])


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
def test_attention_is_that_of_the_installed_classes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: transformers' models need it")
    pytest.importorskip("transformers", reason="transformers is not installed")
    for case in CASES.values():
        compare(shape_of(*case), record(*case, torch))


def test_the_models_of_the_documents_table_are_those_of_the_installed_classes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: transformers' models need it")
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert compare_configs.main(str(CONFIGS)) == 0
    assert "not compared" not in capsys.readouterr().out


def test_what_transformers_does_not_load_is_said_and_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise KeyError("a key")

    monkeypatch.setattr(compare_configs, "record", refused)
    found = compare_configs.compared(json.loads((CONFIGS / "llama-2-7b.json").read_text()), None)
    assert found == "not compared, transformers does not load it ('a key')"


def test_configurations_that_are_changed_at_random_are_refused_or_those_of_the_installed_classes() -> None:
    pytest.importorskip("torch", reason="torch is not installed: transformers' models need it")
    pytest.importorskip("transformers", reason="transformers is not installed")
    counts, misread = fuzz_configs.fuzz(seed=1, cases=60)
    assert misread == []
    assert counts["equal"] > 20


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2", "cohere2"])
def test_the_kernels_themselves_give_what_the_record_says(device: Device, name: str) -> None:
    """Sinks, windows, caps and neighbours that rotate, on the CPU executor; the first layer has a window."""
    shape = shape_of(CASES[name][0], 32)
    steps = plan(shape, "sm_80")
    theirs = RECORDED[name]["kinds"][RECORDED[name]["layers"][0]]
    for kernel in ("incremental_attention", "multi_head_attention"):
        spec = step_of(steps, kernel, 0, batched=False)
        given = arguments_of(shape, spec)
        sizes = {} if "seq_len" in given else {"n_tokens": len(POSITIONS)}
        found = trial(spec, device, target="sm_80", arguments=given, **sizes).require()
        out = found.outputs["out"]
        np.testing.assert_allclose(out[0] if out.ndim == 2 else out[-1, 0], theirs["out"], atol=2e-5, err_msg=kernel)
    rope = step_of(steps, "rope", 0)
    trial(rope, device, target="sm_80", arguments=rope.example(np.random.default_rng(0))).require()


def test_every_family_has_a_case_and_one_that_leaves_out_what_it_can() -> None:
    def family(config: dict[str, Any]) -> set[str]:
        return {config["model_type"]} | ({config["text_config"]["model_type"]} if "text_config" in config else set())

    found = set().union(*(family(config) for config, _ in CASES.values()))
    assert FAMILIES.keys() - found == set(LIKE_LLAMA)


@pytest.mark.parametrize("family", LIKE_LLAMA)
def test_families_without_a_class_read_as_llama(family: str) -> None:
    config, max_len = CASES["llama"]
    given = config | {"num_key_value_heads": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    llama, other = (model_shape(given | {"model_type": name}, max_len=max_len) for name in ("llama", family))
    assert dataclasses.replace(other, family="llama") == llama
