"""The kernels of a model as files, with an index that says what each is for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from ptxgen.errors import SpecError
from ptxgen.generator import generate
from ptxgen.golden import INDEX
from ptxgen.golden.case import golden_file
from ptxgen.models import ModelShape
from ptxgen.models.plan import Step
from ptxgen.views.manifest import FORMAT, spec_fields


def bundle(shape: ModelShape, steps: Iterable[Step], **facts: Any) -> dict[str, str]:
    """Files by name: the PTX and the manifest of each step, and an index that says what each is for, and `facts`."""
    files: dict[str, str] = {}
    entries = []
    for step in steps:
        file = golden_file(step.spec, step.target)
        if file in files:
            raise SpecError(f"{file}: two kernels of the model have this name; {step.spec!r} is one of them")
        contract = file.removesuffix(".ptx") + ".json"
        ptx = generate(step.spec, step.target)
        files[file] = ptx.text
        files[contract] = json.dumps(ptx.manifest(), indent=2) + "\n"
        entries.append(
            {
                "role": step.role,
                "steps": list(step.steps),
                "in_decode_step": step.in_step,
                "layers": list(step.layers),
                "kernel_type": step.spec.kernel_name,
                "spec": spec_fields(step.spec),
                "target": step.target.name,
                "file": file,
                "manifest": contract,
            }
        )
    index = {"format": FORMAT, "model": dataclasses.asdict(shape), **facts, "kernels": entries}
    files[INDEX] = json.dumps(index, indent=2) + "\n"
    return files
