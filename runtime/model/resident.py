"""A decode step as one kernel on a device: on how many CTAs, and whether all of them run at once. Owns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxgen.models.persistent.refusals import refusal
from ptxgen.models.persistent.step import MOST_SHARED, persistent
from ptxgen.models.program import Program

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

ON_THE_EXECUTOR = 16  # CTAs; its clock is no measure of how many are good


def resident(device: Device, program: Program) -> Program:
    """The decode step's Program with its layers in one launch, a CTA a multiprocessor.

    Raises `SpecError` for what such a step does not have, and where the device does not hold all CTAs at once.
    """
    if not device.target.includes_any(("sm_90",)):
        raise refusal(f"the device must run sm_90 (got {device.target})")
    ctas = getattr(device, "multiprocessors", ON_THE_EXECUTOR)
    made = persistent(program, ctas, min(MOST_SHARED, device.target.shared_limit))
    if device.kind == "cuda":
        _held(device, made, ctas)
    return made


def _held(device: Any, program: Program, ctas: int) -> None:
    """Refuse a device that does not hold all CTAs at once."""
    from ptxgen.runtime.core.backend import Geometry
    from ptxgen.runtime.cuda.launch import check_geometry

    spec = program.ops[-1].spec
    launch, function = spec.launch(device.target), device.load(spec).function
    check_geometry(device, function, Geometry.of((ctas, 1, 1), launch.block, launch.shared, together=launch.together))
