"""A decode step as one kernel on a device: on how many CTAs, and whether all of them run at once. Owns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.errors import SpecError
from ptxgen.models.program import Program
from ptxgen.persistent.program import persistent

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

ON_THE_EXECUTOR = 16  # CTAs; its clock is no measure of how many are good


def resident(device: Device, program: Program) -> Program:
    """The decode step's Program with its layers in one launch, a CTA a multiprocessor.

    Raises `SpecError` for what such a step does not have, and where the device does not hold all CTAs at once.
    """
    if not device.target.includes_any(("sm_90",)):
        raise SpecError(f"persistent: a device must run sm_90 (got {device.target}); the step's graph runs here")
    ctas = getattr(device, "multiprocessors", ON_THE_EXECUTOR)
    made = persistent(program, ctas)
    if device.kind == "cuda":
        launch = made.ops[-1].spec.launch(device.target)
        function = device.load(made.ops[-1].spec).function
        fits = device.call(  # type: ignore[attr-defined]
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            function.raw,
            launch.threads,
            launch.shared,  # type: ignore[attr-defined]
        )
        if int(fits) * ctas < ctas:
            raise SpecError(
                f"persistent: {ctas} CTAs of {launch.shared} bytes must run at once (the device holds none)"
            )
    return made
